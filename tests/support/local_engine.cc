#include "tests/support/local_engine.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/compression/selection/selector.h"
#include "common/model/gate_context.h"

namespace sluice {

absl::Status CollectingSink::OnNewRows(LayerId layer, TensorView k, TensorView v, Ops& ops) {
  SLUICE_CHECK(layer.value() == static_cast<int>(new_k.size()));
  new_rows = static_cast<int>(k.shape[1]);
  for (auto [rows, buffers] : {std::pair(k, &new_k), std::pair(v, &new_v)}) {
    const size_t bytes = DTypeSize(rows.dtype) * rows.shape[0] * rows.shape[1] * rows.shape[2];
    SLUICE_ASSIGN_OR_RETURN(Buffer copy, model_->backend()->Allocate(bytes));
    ops.Copy(rows, copy.View(rows.dtype, {rows.shape[0], rows.shape[1], rows.shape[2]}));
    buffers->push_back(std::move(copy));
  }
  return absl::OkStatus();
}

absl::Status CollectingSink::OnKept(LayerId layer, KeptLayer layer_rows) {
  SLUICE_CHECK(layer.value() == static_cast<int>(kept.size()));
  kept.push_back(std::move(layer_rows));
  return absl::OkStatus();
}

absl::Status CollectedHistory::Read(LayerId layer, TensorView k, TensorView v, TensorView positions,
                                    Ops& ops) const {
  const KvShape& shape = model_->kv_shape();
  const int n = sink_->new_rows;
  ops.Copy(sink_->new_k[layer.value()].View(shape.dtype, {shape.n_kv_heads, n, shape.head_dim}), k);
  ops.Copy(sink_->new_v[layer.value()].View(shape.dtype, {shape.n_kv_heads, n, shape.head_dim}), v);
  std::vector<int32_t> places(n);
  for (int i = 0; i < n; ++i) places[i] = first_position_ + i;
  SLUICE_ASSIGN_OR_RETURN(Buffer staged, model_->backend()->Allocate(n * sizeof(int32_t)));
  ops.CopyIn(places.data(), staged.View(DType::kI32, {n}));
  TensorView spread = staged.View(DType::kI32, {1, n});
  spread.shape[0] = shape.n_kv_heads;
  spread.stride[0] = 0;
  ops.Copy(spread, positions);
  return ops.Sync();
}

std::vector<int32_t> KeptPositions(const Model& model, const KeptLayer& layer, int kv_head) {
  std::vector<int32_t> all(layer.total());
  std::unique_ptr<Ops> ops = model.backend()->NewOps();
  ops->CopyOut(layer.positions.View(DType::kI32, {layer.total()}), all.data());
  SLUICE_CHECK(ops->Sync().ok());
  int begin = 0;
  for (int h = 0; h < kv_head; ++h) begin += layer.kept[h];
  return {all.begin() + begin, all.begin() + begin + layer.kept[kv_head]};
}

absl::StatusOr<ResolvedGates> ResolveFor(const ModelShape& shape, const CompressionSpec& spec,
                                         int prompt_tokens, int max_tokens) {
  return ResolveGates(spec, GateContextOf(shape, prompt_tokens, max_tokens), nullptr);
}

absl::StatusOr<std::vector<LocalPrefill>> PrefillTogether(const Model& model,
                                                          const std::vector<LocalRequest>& requests,
                                                          bool wants_new_rows) {
  std::vector<LocalPrefill> results;
  std::vector<PrefillSequence> sequences;
  for (const LocalRequest& request : requests) {
    results.push_back({std::make_unique<CollectingSink>(&model, wants_new_rows), {}});
    sequences.push_back({.ids = request.ids,
                         .first_position = request.first_position,
                         .history = request.history,
                         .gates = request.gates,
                         .sink = results.back().sink.get()});
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PrefillPass> pass,
                          PrefillPass::Create(&model, std::move(sequences)));
  while (!pass->done()) SLUICE_RETURN_IF_ERROR(pass->RunLayer());
  for (size_t i = 0; i < results.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(results[i].logits, pass->LastLogits(static_cast<int>(i)));
  }
  return results;
}

absl::StatusOr<std::unique_ptr<LocalDecoder>> LocalDecoder::Create(const Model& model, int n_slots,
                                                                   size_t memory_bytes, double bounds_share) {
  std::unique_ptr<LocalDecoder> decoder(new LocalDecoder(model));
  SLUICE_ASSIGN_OR_RETURN(decoder->cache_,
                          DecodeCache::Create(model.backend(), model.kv_shape(),
                                              {.n_slots = n_slots,
                                               .max_rows = model.shape().context,
                                               .memory_bytes = memory_bytes,
                                               .bounds_share = bounds_share,
                                               .sliding_windows = model.shape().sliding_window}));
  decoder->stepper_ = std::make_unique<DecodeStepper>(&model, decoder->cache_.get());
  return decoder;
}

absl::StatusOr<std::unique_ptr<SequenceKv>> LocalDecoder::Receive(const LocalPrefill& prefill,
                                                                  const ResolvedGates& gates,
                                                                  int prompt_rows) {
  const KvShape& shape = model_.kv_shape();
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceKv> kv,
                          cache_->NewSequence(SelectorOf(gates.selection.kind).parameters(gates.selection),
                                              KeptCeilings(shape, gates, prompt_rows)));
  Ops& ops = stepper_->ops();
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const KeptLayer& kept = prefill.sink->kept[layer];
    const TensorView k = kept.k.View(shape.dtype, {kept.total(), shape.head_dim});
    const TensorView v = kept.v.View(shape.dtype, {kept.total(), shape.head_dim});
    int begin = 0;
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const int end = begin + kept.kept[head];
      SLUICE_RETURN_IF_ERROR(kv->Write(LayerId(layer), head, 0, k.Slice(0, begin, end),
                                       v.Slice(0, begin, end), KeptPositions(model_, kept, head), ops));
      begin = end;
    }
  }
  kv->FinishWrites(/*growth=*/256, ops);
  SLUICE_RETURN_IF_ERROR(ops.Sync());
  return kv;
}

absl::StatusOr<std::vector<DecodeResult>> LocalDecoder::Step(absl::Span<const DecodeRow> rows) {
  for (const DecodeRow& row : rows) SLUICE_RETURN_IF_ERROR(row.kv->ReserveAppend(stepper_->ops()));
  return stepper_->Run(rows);
}

int32_t Greedy(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<GreedyRun> DecodeGreedily(const Model& model, const LocalPrefill& prefill,
                                         const LocalRequest& request, int n, bool to_end) {
  const int end = request.first_position + static_cast<int>(request.ids.size());
  const int history = request.history == nullptr ? 0 : request.history->rows(LayerId(0));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<LocalDecoder> decoder, LocalDecoder::Create(model, /*n_slots=*/1));
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<SequenceKv> kv,
      decoder->Receive(prefill, request.gates, history + static_cast<int>(request.ids.size())));
  GreedyRun run;
  const auto take = [&run](absl::Span<const float> logits) {
    run.tokens.push_back(Greedy(logits));
    run.logits.emplace_back(logits.begin(), logits.end());
  };
  take(prefill.logits);
  const std::vector<int32_t>& ends = model.shape().eos_ids;
  for (int i = 1; i < n; ++i) {
    if (to_end && std::find(ends.begin(), ends.end(), run.tokens.back()) != ends.end()) break;
    SLUICE_ASSIGN_OR_RETURN(std::vector<DecodeResult> results,
                            decoder->Step({{.kv = kv.get(),
                                            .selection = request.gates.selection.kind,
                                            .token = run.tokens.back(),
                                            .position = LogicalLen(end + i - 1)}}));
    take(results[0].logits);
  }
  return run;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> GenerateTogether(const Model& model,
                                                                   const std::vector<LocalRequest>& requests,
                                                                   int n) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<LocalPrefill> prefills, PrefillTogether(model, requests));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<LocalDecoder> decoder, LocalDecoder::Create(model));
  std::vector<std::vector<int32_t>> tokens(requests.size());
  std::vector<std::unique_ptr<SequenceKv>> sequences;
  std::vector<DecodeRow> rows;
  for (size_t i = 0; i < requests.size(); ++i) {
    const LocalRequest& request = requests[i];
    const int length = static_cast<int>(request.ids.size());
    const int history = request.history == nullptr ? 0 : request.history->rows(LayerId(0));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceKv> kv,
                            decoder->Receive(prefills[i], request.gates, history + length));
    tokens[i].push_back(Greedy(prefills[i].logits));
    rows.push_back({.kv = kv.get(),
                    .selection = request.gates.selection.kind,
                    .token = tokens[i].back(),
                    .position = LogicalLen(PromptEnd(request.gates, request.first_position + length))});
    sequences.push_back(std::move(kv));
  }
  for (int step = 1; step < n; ++step) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<DecodeResult> results, decoder->Step(rows));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].token = results[i].token;
      ++rows[i].position;
      tokens[i].push_back(rows[i].token);
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> Generate(const Model& model, const LocalRequest& request, int n) {
  SLUICE_ASSIGN_OR_RETURN(auto tokens, GenerateTogether(model, {request}, n));
  return tokens[0];
}

}  // namespace sluice
