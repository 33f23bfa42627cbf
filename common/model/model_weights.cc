#include "common/model/model_weights.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

absl::Status Invalid(const WeightFile& file, absl::string_view tensor, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", tensor, ": ", what));
}

// Tensors that repeat what the configuration says: the frequencies some checkpoints store, the divisors that
// ShapeFromGguf has applied.
bool IsKnownExtra(WeightLayout layout, absl::string_view name) {
  if (layout == WeightLayout::kHuggingFace) return absl::EndsWith(name, "rotary_emb.inv_freq");
  return name == "rope_freqs.weight";
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::Create(std::shared_ptr<const WeightFile> file,
                                                  const ModelShape& shape, WeightLayout layout) {
  std::set<std::string> expected;
  for (WeightId id : WeightsOf(shape)) {
    std::string name = TensorName(layout, id);
    auto tensor = file->Find(name);
    if (!tensor.ok()) return Invalid(*file, name, "is missing; the configuration asks for it");
    std::vector<int64_t> dims = WeightDims(shape, id.weight);
    if (tensor->shape != dims)
      return Invalid(*file, name,
                     absl::StrCat("has shape [", absl::StrJoin(tensor->shape, ", "),
                                  "], the configuration asks for [", absl::StrJoin(dims, ", "), "]"));
    expected.insert(std::move(name));
  }
  for (const auto& [name, tensor] : file->tensors()) {
    if (expected.contains(name) || IsKnownExtra(layout, name)) continue;
    // A tied model may store its one matrix twice.
    if (name == TensorName(layout, {Weight::kLmHead})) {
      SLUICE_ASSIGN_OR_RETURN(TensorInfo embedding, file->Find(TensorName(layout, {Weight::kEmbedding})));
      if (tensor.bytes == embedding.bytes) continue;
      return Invalid(*file, name, "differs from the embedding though the configuration ties them");
    }
    return Invalid(*file, name, "is unknown; it may change the model's results, so it is not ignored");
  }
  return ModelWeights(std::move(file), layout, shape.head_dim, shape.tied_embeddings);
}

absl::StatusOr<TensorInfo> ModelWeights::Find(WeightId id) const {
  if (id.weight == Weight::kLmHead && tied_) id.weight = Weight::kEmbedding;
  return file_->Find(TensorName(layout_, id));
}

bool ModelWeights::Interleaved(Weight weight) const {
  return layout_ == WeightLayout::kGgufInterleaved && (weight == Weight::kQ || weight == Weight::kK);
}

absl::Status ModelWeights::Read(WeightId id, int64_t row_begin, int64_t row_end,
                                absl::Span<float> out) const {
  SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, Find(id));
  if (!Interleaved(id.weight)) return ReadRows(tensor, row_begin, row_end, out);
  int64_t width = tensor.row_elements();
  if (row_begin < 0 || row_end < row_begin || row_end > tensor.rows() ||
      out.size() != static_cast<size_t>((row_end - row_begin) * width))
    return Invalid(*file_, tensor.name,
                   absl::StrCat("no rows ", row_begin, " to ", row_end, " for ", out.size(), " floats"));
  int64_t half = head_dim_ / 2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    int64_t head = row / head_dim_, d = row % head_dim_;
    int64_t stored = head * head_dim_ + 2 * (d % half) + d / half;
    SLUICE_RETURN_IF_ERROR(
        ReadRows(tensor, stored, stored + 1, out.subspan((row - row_begin) * width, width)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ModelWeights::ReadAll(WeightId id) const {
  SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, Find(id));
  std::vector<float> out(tensor.rows() * tensor.row_elements());
  SLUICE_RETURN_IF_ERROR(Read(id, 0, tensor.rows(), absl::MakeSpan(out)));
  return out;
}

}  // namespace sluice
