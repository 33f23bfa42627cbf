#include "tests/support/ranked_engine.h"

#include <utility>

#include "common/base/status.h"
#include "common/compression/selection/selector.h"
#include "tests/support/local_engine.h"

namespace sluice {
namespace {

class KeepAll final : public RankedSink {
 public:
  explicit KeepAll(std::vector<KeptLayer>* kept) : kept_(kept) {}
  bool wants_new_rows() const override { return false; }
  absl::Status OnNewRows(int, LayerId, TensorView, TensorView, Ops&) override { return absl::OkStatus(); }
  absl::Status OnKept(LayerId layer, KeptLayer kept) override {
    SLUICE_CHECK(layer.value() == static_cast<int>(kept_->size()));
    kept_->push_back(std::move(kept));
    return absl::OkStatus();
  }

 private:
  std::vector<KeptLayer>* const kept_;
};

}  // namespace

absl::StatusOr<RankedPrompt> PrefillRanked(const RankedModel& model, const std::vector<int32_t>& ids,
                                           const ResolvedGates& gates) {
  RankedPrompt prompt;
  KeepAll sink(&prompt.kept);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RankedPrefill> pass,
                          RankedPrefill::Create(&model, {{.ids = ids, .gates = gates, .sink = &sink}}));
  while (!pass->done()) SLUICE_RETURN_IF_ERROR(pass->RunLayer());
  SLUICE_ASSIGN_OR_RETURN(prompt.logits, pass->LastLogits(0));
  return prompt;
}

absl::StatusOr<std::unique_ptr<RankedSequence>> ReceiveRanked(const RankedModel& model,
                                                              const RankedPrompt& prompt,
                                                              const ResolvedGates& gates, int prompt_rows,
                                                              RankedCache* cache, const RankQueues& queues) {
  const KvShape& shape = model.kv_shape();
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RankedSequence> kv,
                          cache->NewSequence(SelectorOf(gates.selection.kind).parameters(gates.selection),
                                             KeptCeilings(shape, gates, prompt_rows)));
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const KeptLayer& kept = prompt.kept[layer];
    int begin = 0;
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      const int end = begin + kept.kept[head];
      const auto rows = [&](const Buffer& kv) {
        return kv.View(shape.dtype, {kept.total(), shape.head_dim}).Slice(0, begin, end);
      };
      SLUICE_RETURN_IF_ERROR(kv->Write(LayerId(layer), head, 0, rows(kept.k), rows(kept.v),
                                       KeptPositions(model.rank(0), kept, head), queues));
      begin = end;
    }
  }
  kv->FinishWrites(/*growth=*/256, queues);
  for (Ops* queue : queues) SLUICE_RETURN_IF_ERROR(queue->Sync());
  return kv;
}

absl::StatusOr<RankedRun> RunRanked(const RankedModel& model, const std::vector<int32_t>& ids,
                                    const ResolvedGates& gates, int n, const std::vector<int32_t>& forced) {
  RankedRun run;
  SLUICE_ASSIGN_OR_RETURN(run.prompt, PrefillRanked(model, ids, gates));
  run.tokens.push_back(Greedy(run.prompt.logits));
  run.logits.push_back(run.prompt.logits);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RankedCache> cache,
                          RankedCache::Create(model.group(), model.kv_shape(),
                                              {.n_slots = 2,
                                               .max_rows = model.shape().context,
                                               .memory_bytes = size_t{256} << 20,
                                               .bounds_share = 0.25,
                                               .sliding_windows = model.shape().sliding_window}));
  RankedDecode decode(&model, cache.get());
  const int length = static_cast<int>(ids.size()), end = PromptEnd(gates, length);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RankedSequence> kv,
                          ReceiveRanked(model, run.prompt, gates, length, cache.get(), decode.queues()));
  for (int i = 1; i < n; ++i) {
    SLUICE_RETURN_IF_ERROR(kv->ReserveAppend(decode.queues()));
    const RankedDecodeRow row{.kv = kv.get(),
                              .selection = gates.selection.kind,
                              .token = forced.empty() ? run.tokens.back() : forced[i - 1],
                              .position = LogicalLen(end + i - 1)};
    SLUICE_ASSIGN_OR_RETURN(std::vector<DecodeResult> results, decode.Run({row}));
    run.tokens.push_back(results[0].token);
    run.logits.emplace_back(results[0].logits.begin(), results[0].logits.end());
  }
  return run;
}

}  // namespace sluice
