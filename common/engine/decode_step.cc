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
        scratch(model->backend()),
        layer_scratch(model->backend()) {}

  absl::Status Check(absl::Span<const DecodeRow> rows) const;
  absl::Status Enqueue(absl::Span<const DecodeRow> rows);
  absl::Status EnqueueLayers(absl::Span<const int> kinds, TensorView ids, TensorView positions,
                             TensorView slots, TensorView logits, TensorView best);

  const Model* const model;
  DecodeCache* const cache;
  const std::unique_ptr<Ops> ops;
  Workspace step;             // what is copied in and out
  Workspace scratch;          // what lives through the layers
  Workspace layer_scratch;    // one layer's scratch
  std::vector<size_t> order;  // the batch's rows by selection kind
  std::vector<int32_t> next;  // [batch] tokens, in that order
  std::vector<float> logits;  // [batch, vocab], rows that want them
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
  std::vector<int32_t> inputs(3 * rows.size());  // tokens, positions, slots: one copy
  size_t at = 0;
  std::vector<int> kinds;  // what a step's ops depend on
  for (size_t i : order) {
    kinds.push_back(static_cast<int>(rows[i].selection));
    inputs[at] = rows[i].token;
    inputs[rows.size() + at] = rows[i].position.value();
    inputs[2 * rows.size() + at++] = rows[i].kv->slot();
    rows[i].kv->AdvanceWindows(rows[i].position.value(), *ops);
  }

  step.Reset();
  SLUICE_ASSIGN_OR_RETURN(const TensorView in, step.Take(DType::kI32, {3, batch}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView device_logits, step.Take(DType::kF32, {batch, shape.vocab}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView device_tokens, step.Take(DType::kI32, {batch}));
  ops->CopyIn(inputs.data(), in);
  SLUICE_RETURN_IF_ERROR(ops->Replay(kinds, [&] {
    return EnqueueLayers(kinds, in.At(0), in.At(1), in.At(2), device_logits, device_tokens);
  }));
  std::vector<SampleRule> rules;
  for (size_t i = 0; i < order.size(); ++i) {
    const DecodeRow& row = rows[order[i]];
    if (row.wants_logits) {  // before penalties are written into them
      logits.resize(rows.size() * shape.vocab);
      ops->CopyOut(device_logits.At(static_cast<int64_t>(i)), logits.data() + i * shape.vocab);
    }
    if (row.rule == nullptr) continue;
    rules.push_back(*row.rule);
    rules.back().row = static_cast<int>(i);
  }
  if (!rules.empty()) ops->Sample(device_logits, rules, device_tokens);
  next.resize(rows.size());
  ops->CopyOut(device_tokens, next.data());
  return absl::OkStatus();
}

absl::Status DecodeStepper::Impl::EnqueueLayers(absl::Span<const int> kinds, TensorView ids,
                                                TensorView positions, TensorView slots, TensorView logits,
                                                TensorView best) {
  const ModelShape& shape = model->shape();
  const auto batch = static_cast<int64_t>(kinds.size());
  layer_scratch.Reset();
  scratch.Reset();
  SLUICE_ASSIGN_OR_RETURN(const TensorView hidden, scratch.Take(DType::kF32, {batch, shape.hidden}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView attention,
                          scratch.Take(model->attention_dtype(), {batch, shape.n_q_heads, shape.head_dim}));
  model->Embed(ids, hidden, *ops);
  for (int l = 0; l < shape.n_layers; ++l) {
    const LayerId layer(l);
    layer_scratch.Reset();
    SLUICE_ASSIGN_OR_RETURN(const Model::QkvViews qkv,
                            model->Qkv(layer, hidden, positions, *ops, layer_scratch));
    ops->AppendKv(qkv.k, qkv.v, cache->View(layer, slots));
    for (int64_t begin = 0, end; begin < batch; begin = end) {
      const int kind = kinds[begin];
      for (end = begin; end < batch && kinds[end] == kind;) ++end;
      SelectorOf(static_cast<SelectionKind>(kind))
          .Attend(layer, qkv.q.Slice(0, begin, end), cache->View(layer, slots.Slice(0, begin, end)), *ops,
                  attention.Slice(0, begin, end));
    }
    SLUICE_RETURN_IF_ERROR(model->Finish(layer, attention, hidden, *ops, layer_scratch));
  }
  layer_scratch.Reset();
  SLUICE_RETURN_IF_ERROR(model->Logits(hidden, logits, *ops, layer_scratch));
  ops->ArgMax(logits, best);
  return absl::OkStatus();
}

DecodeStepper::DecodeStepper(const Model* model, DecodeCache* cache)
    : impl_(std::make_unique<Impl>(model, cache)) {}
DecodeStepper::~DecodeStepper() = default;

Ops& DecodeStepper::ops() { return *impl_->ops; }

absl::StatusOr<std::vector<DecodeResult>> DecodeStepper::Run(absl::Span<const DecodeRow> rows) {
  if (rows.empty()) return std::vector<DecodeResult>();
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
  std::vector<DecodeResult> result(rows.size());
  for (size_t i = 0; i < impl_->order.size(); ++i) {
    const size_t row = impl_->order[i];
    result[row].token = impl_->next[i];
    if (rows[row].wants_logits)
      result[row].logits = absl::MakeConstSpan(impl_->logits.data() + i * vocab, vocab);
  }
  return result;
}

}  // namespace sluice
