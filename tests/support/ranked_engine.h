// Role: prefill and decode of one request over the ranks of a model, without servers or wire: what several
// ranks must equal is stated with it. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/compression/resolved_gates.h"
#include "common/engine/ranked_decode.h"
#include "common/engine/ranked_prefill.h"
#include "common/model/ranked_model.h"

namespace sluice {

struct RankedPrompt {
  std::vector<KeptLayer> kept;  // [n_layers], on rank 0's device
  std::vector<float> logits;    // of the last token
};
absl::StatusOr<RankedPrompt> PrefillRanked(const RankedModel& model, const std::vector<int32_t>& ids,
                                           const ResolvedGates& gates);

// Moves the kept rows into the cache, with room for 256 more in every head.
absl::StatusOr<std::unique_ptr<RankedSequence>> ReceiveRanked(const RankedModel& model,
                                                              const RankedPrompt& prompt,
                                                              const ResolvedGates& gates, int prompt_rows,
                                                              RankedCache* cache, const RankQueues& queues);

struct RankedRun {
  RankedPrompt prompt;
  std::vector<int32_t> tokens;             // greedy
  std::vector<std::vector<float>> logits;  // of each token
};

// n tokens after `ids`. forced: decode goes on with these instead of its own.
absl::StatusOr<RankedRun> RunRanked(const RankedModel& model, const std::vector<int32_t>& ids,
                                    const ResolvedGates& gates, int n,
                                    const std::vector<int32_t>& forced = {});

}  // namespace sluice
