#include "common/engine/decode_step.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/selection/selector.h"

namespace sluice {

struct DecodeStepper::Impl {
  Impl(const Model* model, DecodeCache* cache)
      : model(model),
        cache(cache),
        ops(model->backend()->NewOps()),
        step(model->backend()),
        scratch(model->backend()) {}

  absl::Status Check(absl::Span<const DecodeRow> rows) const;
  absl::Status Enqueue(absl::Span<const DecodeRow> rows);

  const Model* const model;
  DecodeCache* const cache;
  const std::unique_ptr<Ops> ops;
  Workspace step;             // what lives through the step
  Workspace scratch;          // one layer's scratch
  std::vector<size_t> order;  // the batch's rows by selection kind
  std::vector<float> logits;  // [batch, vocab], in that order
};

absl::Status DecodeStepper::Impl::Check(absl::Span<const DecodeRow> rows) const {
  const ModelShape& shape = model->shape();
  for (size_t i = 0; i < rows.size(); ++i) {
    SLUICE_CHECK(rows[i].kv != nullptr);
    if (rows[i].token < 0 || rows[i].token >= shape.vocab)
      return absl::InvalidArgumentError(
          absl::StrCat("row ", i, ": token id ", rows[i].token, ", the vocabulary has ", shape.vocab));
    if (rows[i].position.value() < 0 || rows[i].position.value() >= shape.context)
      return absl::OutOfRangeError(absl::StrCat("row ", i, ": position ", rows[i].position.value(),
                                                ", the context has ", shape.context));
  }
  return absl::OkStatus();
}

absl::Status DecodeStepper::Impl::Enqueue(absl::Span<const DecodeRow> rows) {
  const ModelShape& shape = model->shape();
  const auto batch = static_cast<int64_t>(rows.size());
  order.resize(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].selection < rows[b].selection; });
  std::vector<int32_t> tokens, places, slot_ids;
  for (size_t i : order) {
    tokens.push_back(rows[i].token);
    places.push_back(rows[i].position.value());
    slot_ids.push_back(rows[i].kv->slot());
    rows[i].kv->AdvanceWindows(rows[i].position.value(), *ops);
  }

  step.Reset();
  scratch.Reset();
  SLUICE_ASSIGN_OR_RETURN(const TensorView ids, step.Take(DType::kI32, {batch}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView positions, step.Take(DType::kI32, {batch}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView slots, step.Take(DType::kI32, {batch}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView hidden, step.Take(DType::kF32, {batch, shape.hidden}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView attention,
                          step.Take(DType::kF32, {batch, shape.n_q_heads, shape.head_dim}));
  ops->CopyIn(tokens.data(), ids);
  ops->CopyIn(places.data(), positions);
  ops->CopyIn(slot_ids.data(), slots);
  model->Embed(ids, hidden, *ops);
  for (int l = 0; l < shape.n_layers; ++l) {
    const LayerId layer(l);
    scratch.Reset();
    SLUICE_ASSIGN_OR_RETURN(const Model::QkvViews qkv, model->Qkv(layer, hidden, positions, *ops, scratch));
    ops->AppendKv(qkv.k, qkv.v, cache->View(layer, slots));
    for (size_t begin = 0, end; begin < order.size(); begin = end) {
      const SelectionKind kind = rows[order[begin]].selection;
      for (end = begin; end < order.size() && rows[order[end]].selection == kind;) ++end;
      SelectorOf(kind).Attend(qkv.q.Slice(0, begin, end), cache->View(layer, slots.Slice(0, begin, end)),
                              *ops, attention.Slice(0, begin, end));
    }
    SLUICE_RETURN_IF_ERROR(model->Finish(layer, attention, hidden, *ops, scratch));
  }
  scratch.Reset();
  SLUICE_ASSIGN_OR_RETURN(const TensorView all, model->Logits(hidden, *ops, scratch));
  logits.resize(rows.size() * shape.vocab);
  ops->CopyOut(all, logits.data());
  return absl::OkStatus();
}

DecodeStepper::DecodeStepper(const Model* model, DecodeCache* cache)
    : impl_(std::make_unique<Impl>(model, cache)) {}
DecodeStepper::~DecodeStepper() = default;

Ops& DecodeStepper::ops() { return *impl_->ops; }

absl::StatusOr<std::vector<absl::Span<const float>>> DecodeStepper::Run(absl::Span<const DecodeRow> rows) {
  if (rows.empty()) return std::vector<absl::Span<const float>>();
  SLUICE_RETURN_IF_ERROR(impl_->Check(rows));
  absl::Status enqueued = impl_->Enqueue(rows);
  absl::Status status = impl_->ops->Sync();
  status.Update(enqueued);
  if (!status.ok()) {
    // Some layers may have counted the row: the host's lengths go to the device again.
    for (const DecodeRow& row : rows) row.kv->FinishWrites(/*growth=*/1, *impl_->ops);
    status.Update(impl_->ops->Sync());
    return status;
  }
  for (const DecodeRow& row : rows) row.kv->Appended(row.position.value());
  const size_t vocab = impl_->model->shape().vocab;
  std::vector<absl::Span<const float>> result(rows.size());
  for (size_t i = 0; i < impl_->order.size(); ++i)
    result[impl_->order[i]] = absl::MakeConstSpan(impl_->logits.data() + i * vocab, vocab);
  return result;
}

}  // namespace sluice
