#include "common/engine/loss_measurement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "common/base/status.h"
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

// [layer * n_kv_heads + head]
absl::StatusOr<KeptRows> PositionsOf(const std::vector<KeptLayer>& layers, Backend* home) {
  KeptRows rows;
  const std::unique_ptr<Ops> ops = home->NewOps();
  for (const KeptLayer& layer : layers) {
    std::vector<int32_t> all(layer.total());
    ops->CopyOut(layer.positions.View(DType::kI32, {layer.total()}), all.data());
    SLUICE_RETURN_IF_ERROR(ops->Sync());
    auto begin = all.begin();
    for (int n : layer.kept) {
      rows.emplace_back(begin, begin + n);
      begin += n;
    }
  }
  return rows;
}

}  // namespace

// All rows of the layer that ran last.
class LossMeasurement::LastLayer final : public RankedSink {
 public:
  bool wants_new_rows() const override { return false; }
  absl::Status OnNewRows(int, LayerId, TensorView, TensorView, Ops&) override { return absl::OkStatus(); }
  absl::Status OnKept(LayerId, KeptLayer kept) override {
    rows = std::move(kept);
    return absl::OkStatus();
  }
  KeptLayer rows;
};

absl::StatusOr<std::unique_ptr<LossMeasurement>> LossMeasurement::Begin(const RankedModel* model,
                                                                        RankedCache* cache,
                                                                        RankedDecode* decode,
                                                                        const MeasuredPrompt& prompt) {
  auto measurement = absl::WrapUnique(new LossMeasurement(model, cache, decode, prompt));
  SLUICE_RETURN_IF_ERROR(measurement->Start(prompt));
  return measurement;
}

LossMeasurement::LossMeasurement(const RankedModel* model, RankedCache* cache, RankedDecode* decode,
                                 const MeasuredPrompt& prompt)
    : model_(model),
      cache_(cache),
      decode_(decode),
      length_(static_cast<int>(prompt.ids.size())),
      selection_(prompt.gates.selection.kind),
      same_positions_(prompt.gates.propagation.kind != PropagationKind::kRerun),
      full_end_(length_),
      kept_end_(PromptEnd(prompt.gates, length_)),
      last_layer_(std::make_unique<LastLayer>()) {}

LossMeasurement::~LossMeasurement() = default;

absl::Status LossMeasurement::Start(const MeasuredPrompt& prompt) {
  const KvShape& shape = model_->kv_shape();
  SLUICE_CHECK(prompt.kept != nullptr && static_cast<int>(prompt.kept->size()) == shape.n_layers);
  SLUICE_ASSIGN_OR_RETURN(kept_rows_, PositionsOf(*prompt.kept, model_->group().rank(0)));
  all_rows_.assign(shape.n_kv_heads, std::vector<int32_t>(length_));
  for (auto& rows : all_rows_) std::iota(rows.begin(), rows.end(), 0);

  std::vector<int> lengths;
  for (const auto& rows : kept_rows_) lengths.push_back(static_cast<int>(rows.size()));
  SLUICE_ASSIGN_OR_RETURN(kept_, Reserve(prompt.gates, lengths));
  SLUICE_ASSIGN_OR_RETURN(full_, Reserve({}, std::vector<int>(lengths.size(), length_)));
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const auto first = kept_rows_.begin() + layer * shape.n_kv_heads;
    SLUICE_RETURN_IF_ERROR(
        Write(kept_.get(), LayerId(layer), (*prompt.kept)[layer], {first, first + shape.n_kv_heads}));
  }
  SLUICE_RETURN_IF_ERROR(Finish(kept_.get()));

  RankedPrefillSequence sequence;
  sequence.ids = prompt.ids;
  sequence.sink = last_layer_.get();
  if (same_positions_) {
    for (int rank = 0; rank < model_->ranks(); ++rank) {
      observers_.push_back(
          std::make_unique<RetainedMass>(&kept_rows_, shape, cache_->heads().global(rank, 0)));
      sequence.observers.push_back(observers_.back().get());
    }
  }
  SLUICE_ASSIGN_OR_RETURN(pass_, RankedPrefill::Create(model_, {sequence}));
  return absl::OkStatus();
}

// Rows in every layer and head, and room for the tokens that follow.
absl::StatusOr<std::unique_ptr<RankedSequence>> LossMeasurement::Reserve(const ResolvedGates& gates,
                                                                         const std::vector<int>& rows) {
  std::vector<int> room;
  for (int n : rows) room.push_back(std::min(n + kTokens, cache_->max_rows()));
  return cache_->NewSequence(SelectorOf(gates.selection.kind).parameters(gates.selection), room);
}

absl::Status LossMeasurement::Write(RankedSequence* kv, LayerId layer, const KeptLayer& rows,
                                    const std::vector<std::vector<int32_t>>& positions) {
  const KvShape& shape = model_->kv_shape();
  const TensorView k = rows.k.View(shape.dtype, {rows.total(), shape.head_dim});
  const TensorView v = rows.v.View(shape.dtype, {rows.total(), shape.head_dim});
  absl::Status written;
  int begin = 0;
  for (int head = 0; head < shape.n_kv_heads && written.ok(); ++head) {
    const int end = begin + rows.kept[head];
    written = kv->Write(layer, head, 0, k.Slice(0, begin, end), v.Slice(0, begin, end), positions[head],
                        decode_->queues());
    begin = end;
  }
  written.Update(Sync());  // whatever came of it: the rows may go
  return written;
}

absl::Status LossMeasurement::Finish(RankedSequence* kv) {
  kv->FinishWrites(kTokens, decode_->queues());
  return Sync();
}

absl::Status LossMeasurement::Sync() {
  absl::Status status;
  for (Ops* queue : decode_->queues()) status.Update(queue->Sync());
  return status;
}

absl::Status LossMeasurement::Step() {
  SLUICE_CHECK(!done_);
  return pass_ != nullptr ? RunLayer() : RunToken();
}

absl::Status LossMeasurement::RunLayer() {
  const LayerId layer(pass_->layers_done());
  SLUICE_RETURN_IF_ERROR(pass_->RunLayer());
  SLUICE_RETURN_IF_ERROR(Write(full_.get(), layer, last_layer_->rows, all_rows_));
  last_layer_->rows = KeptLayer();
  if (same_positions_) {
    double sum = 0;
    for (const auto& observer : observers_) sum += observer->sum(layer);
    loss_.retained_mass.push_back(static_cast<float>(std::min(sum / model_->kv_shape().n_kv_heads, 1.0)));
  }
  if (!pass_->done()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const int32_t first, pass_->LastBest(0));
  pass_.reset();
  SLUICE_RETURN_IF_ERROR(Finish(full_.get()));
  Take(first);
  return absl::OkStatus();
}

// What full KV says next: fed to both, unless the measurement ends with it.
void LossMeasurement::Take(int32_t token) {
  const std::vector<int32_t>& ends = model_->shape().eos_ids;
  token_ = token;
  done_ = loss_.top1_tokens == kTokens || full_end_.value() >= model_->shape().context ||
          std::find(ends.begin(), ends.end(), token) != ends.end();
}

absl::Status LossMeasurement::RunToken() {
  for (RankedSequence* kv : {full_.get(), kept_.get()})
    SLUICE_RETURN_IF_ERROR(kv->ReserveAppend(decode_->queues()));
  const RankedDecodeRow full{
      .kv = full_.get(), .token = token_, .position = full_end_, .wants_logits = false};
  const RankedDecodeRow kept{.kv = kept_.get(),
                             .selection = selection_,
                             .token = token_,
                             .position = kept_end_,
                             .wants_logits = false};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<DecodeResult> next, decode_->Run({full, kept}));
  if (next[0].token < 0) return absl::InternalError("non-finite logits");
  ++full_end_;
  ++kept_end_;
  ++loss_.top1_tokens;
  if (next[0].token == next[1].token) ++loss_.top1_agreed;
  Take(next[0].token);
  return absl::OkStatus();
}

size_t LossMeasurement::WorkBytes(const RankedModel& model, int prompt_tokens) {
  const KvShape& shape = model.kv_shape();
  // All rows of a layer with their positions; of several ranks each one's share, and all of them together.
  const size_t layer = static_cast<size_t>(prompt_tokens) * shape.n_kv_heads * (2 * shape.row_bytes() + 4);
  return RankedPrefill::ScratchBytes(model, prompt_tokens, 0) + 2 * layer;
}

}  // namespace sluice
