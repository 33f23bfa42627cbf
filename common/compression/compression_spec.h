// Role: what a request may say about compression, and how it becomes numbers (architecture.md §9.1-9.5).
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compression/resolved_gates.h"

namespace sluice {

inline constexpr int kDefaultBudgetTokens = 1024;
inline constexpr int kMinBudgetTokens = 16;

// A preset, every field of which may be overridden; or gates one by one.
struct CompressionSpec {
  std::string preset;  // empty: "full". A caller with a default of its own puts it here first
  std::optional<PropagationKind> propagation;
  std::optional<int> tsp_layer;    // 0-based; default: the model's own
  std::optional<double> tsp_rate;  // (0, 1] of the prompt
  std::optional<RetentionKind> retention;
  std::optional<SelectionKind> selection;
  std::optional<HistoryKind> history;  // default: keep, or evict where propagation is asked for
  std::optional<int> window;
  std::optional<Pooling> pooling;  // of retention and propagation
  std::optional<int> budget_tokens;
  std::optional<double> keep_ratio;      // (0, 1] of the prompt; excludes budget_tokens
  std::optional<int> min_prompt_tokens;  // below it every gate is off; default 2 * budget
  std::optional<int> split_max_tokens;   // m of the adaptive split; default min(max_tokens, 128)
  std::optional<bool> subset_coverage;   // allow propagation with history=keep
  std::optional<bool> fallback_full;     // a gate that cannot be served is off, instead of an error
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

// Page size, channels and tokens of HSA over a cache of `rows` rows.
SelectionGate SplitHsa(int rows, int budget_tokens, int head_dim);

// The adaptive split of RocketKV (algorithms.md §3.1).
struct RocketSplit {
  int cap = 0;            // rows at the end of m decoded tokens
  int prompt_budget = 0;  // rows of the prompt among them; may be below the window, or not positive
  SelectionGate selection;
};
RocketSplit SplitBudget(int prompt_tokens, int m, int budget_tokens, int context, int head_dim);

// InvalidArgument names the field and what to change. `previous`: the gates of a session's earlier turn; with
// history=evict their numbers stay (algorithms.md §3.4) unless that turn was not compressed. Null otherwise.
absl::StatusOr<ResolvedGates> ResolveGates(const CompressionSpec& spec, const GateContext& context,
                                           const ResolvedGates* previous);

struct Preset {
  const char* name;
  const char* summary;  // one line for people
  CompressionSpec spec;
};
absl::Span<const Preset> Presets();  // full, snapkv, streaming_llm, rocketkv, rocketkv-mt, sluice, sluice-mt

}  // namespace sluice
