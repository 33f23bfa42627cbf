#include "common/model/model_weights.h"

#include <algorithm>
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

ModelWeights ModelWeights::OfRank(int rank, int n) const {
  ModelWeights share = *this;
  share.rank_ = rank;
  share.ranks_ = n;
  return share;
}

absl::Status ModelWeights::Read(WeightId id, int64_t row_begin, int64_t row_end,
                                absl::Span<float> out) const {
  SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, Find(id));
  const Split split = ranks_ == 1 ? Split::kNone : SplitOf(id.weight);
  if (split == Split::kNone) return ReadWhole(tensor, id.weight, row_begin, row_end, out);
  if (split == Split::kRows) {
    const int64_t own = tensor.rows() / ranks_, first = rank_ * own;
    if (row_end > own)
      return Invalid(*file_, tensor.name, absl::StrCat("no row ", row_end - 1, " in a share of ", own));
    return ReadWhole(tensor, id.weight, first + row_begin, first + row_end, out);
  }
  const int64_t own = tensor.row_elements() / ranks_;
  if (out.size() != static_cast<size_t>((row_end - row_begin) * own))
    return Invalid(*file_, tensor.name, absl::StrCat("no room for ", row_end - row_begin, " rows of ", own));
  std::vector<float> row(tensor.row_elements());
  for (int64_t i = row_begin; i < row_end; ++i) {
    SLUICE_RETURN_IF_ERROR(ReadWhole(tensor, id.weight, i, i + 1, absl::MakeSpan(row)));
    std::copy_n(row.begin() + rank_ * own, own, out.begin() + (i - row_begin) * own);
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::ReadWhole(const TensorInfo& tensor, Weight weight, int64_t row_begin,
                                     int64_t row_end, absl::Span<float> out) const {
  if (!Interleaved(weight)) return ReadRows(tensor, row_begin, row_end, out);
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
  const Split split = SplitOf(id.weight);
  const int64_t rows = tensor.rows() / (split == Split::kRows ? ranks_ : 1);
  const int64_t width = tensor.row_elements() / (split == Split::kColumns ? ranks_ : 1);
  std::vector<float> out(rows * width);
  SLUICE_RETURN_IF_ERROR(Read(id, 0, rows, absl::MakeSpan(out)));
  return out;
}

}  // namespace sluice
