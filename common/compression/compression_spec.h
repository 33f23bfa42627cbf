// Role: what a request may say about compression, and how it becomes numbers (architecture.md §9.1-9.5).
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compression/resolved_gates.h"

namespace sluice {

// A preset, or gates one by one over the preset "full"; every field overrides the preset's.
struct CompressionSpec {
  std::string preset;  // empty: the caller's default
  std::optional<PropagationKind> propagation;
  std::optional<int> tsp_layer;
  std::optional<double> tsp_rate;  // (0, 1]
  std::optional<RetentionKind> retention;
  std::optional<SelectionKind> selection;
  std::optional<HistoryKind> history;
  std::optional<int> window;
  std::optional<Pooling> pooling;  // of retention and propagation
  std::optional<int> budget_tokens;
  std::optional<double> keep_ratio;  // (0, 1] of the prompt; excludes budget_tokens
  std::optional<int> min_prompt_tokens;
  std::optional<int> split_max_tokens;  // m of the adaptive split; default min(max_tokens, 128)
  std::optional<bool> subset_coverage;  // allow propagation with history=keep
  std::optional<bool> fallback_full;    // on_unsupported = FALLBACK_FULL instead of an error
};

struct GateContext {
  int prompt_tokens = 0;  // whole prompt of this turn, history included
  int turn_tokens = 0;    // tokens new in this turn
  int max_tokens = 0;     // completion bound after defaults
  int context = 0;        // model's context length
  int head_dim = 0;
  int n_layers = 0;
  bool sliding_window = false;   // any layer has one: HSA is not served there
  std::optional<int> tsp_layer;  // the model's own, if known
};

// The adaptive split of RocketKV (algorithms.md §3.1).
struct RocketSplit {
  int cap = 0, prompt_budget = 0, page = 0, channels = 0, tokens = 0;
};
RocketSplit SplitBudget(int prompt_tokens, int m, int budget_tokens, int context, int head_dim);

// InvalidArgument names the field and what to change. `previous`: turn 1's gates of a session with
// history=evict, whose numbers stay (algorithms.md §3.4); null otherwise.
absl::StatusOr<ResolvedGates> ResolveGates(const CompressionSpec& spec, const GateContext& context,
                                           const ResolvedGates* previous);

struct Preset {
  const char* name;
  const char* summary;  // one line for people
  CompressionSpec spec;
};
absl::Span<const Preset> Presets();  // full, snapkv, streaming_llm, rocketkv, rocketkv-mt, sluice, sluice-mt

}  // namespace sluice
