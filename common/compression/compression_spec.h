// Role: what a request may say about compression, and how it becomes numbers (architecture.md §9.1-9.5).
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/compression/resolved_gates.h"

namespace sluice {

inline constexpr int kDefaultBudgetTokens = 1024;
inline constexpr int kMinBudgetTokens = 16;
inline constexpr int kDefaultHsaPaysFrom = 500;

// A preset, every field of which may be overridden; or gates one by one.
struct CompressionSpec {
  std::string preset;  // empty: "full". A caller with a default of its own puts it here first
  std::optional<PropagationKind> propagation;
  std::optional<int> tsp_layer;    // of tsp and rerun, 0-based; default: the model's own
  std::optional<double> tsp_rate;  // (0, 1] of the prompt; default 0.2, and of rerun the budget
  std::optional<bool> raw_scores;  // rerun ranks by q.k instead of attention weights
  std::optional<RetentionKind> retention;
  std::optional<SelectionKind> selection;
  std::optional<int> selection_page;      // rows of a page of quest; default 16
  std::optional<int> selection_channels;  // r of sparq; default 16
  std::optional<HistoryKind> history;     // default: keep, or evict where propagation is asked for
  std::optional<int> window;
  std::optional<Pooling> pooling;     // of retention and propagation, as are the next two
  std::optional<bool> pool_per_head;  // before query heads are summed over a group
  std::optional<bool> round_weights;  // attention weights rounded to bf16
  std::optional<int> chunk;           // rows of a chunk of chunkkv
  std::optional<int> reuse;           // layers that share one choice of chunkkv
  std::optional<bool> one_set;        // chunkkv: all KV heads keep the same rows
  std::optional<double> head_floor;   // [0, 1]: share of the budget that adakv leaves every head
  std::optional<int> budget_tokens;
  std::optional<double> keep_ratio;      // (0, 1] of the prompt; excludes budget_tokens
  std::optional<int> min_prompt_tokens;  // below it every gate is off; default 2 * budget
  std::optional<int> split_max_tokens;   // m of the adaptive split; default min(max_tokens, 128)
  std::optional<bool> subset_coverage;   // allow propagation with history=keep
  std::optional<bool> fallback_full;     // a gate that cannot be served is off, instead of an error
  std::optional<bool> dense_if_faster;   // selection is off where it would not be faster (see hsa_pays_from)
};

struct GateContext {
  int prompt_tokens = 0;  // whole prompt of this turn, history included
  int turn_tokens = 0;    // tokens new in this turn
  int max_tokens = 0;     // completion bound after defaults
  int context = 0;        // model's context length
  int head_dim = 0;
  int n_layers = 0;
  int n_kv_heads = 0;
  bool sliding_window = false;   // any layer has one: only dense selection is served there
  std::optional<int> tsp_layer;  // the model's own, if known
  // Rows kept beyond the budget from which sparse reads are faster than dense ones. A property of the
  // request, never of the batch it lands in: a batch of N answers as N single requests do.
  int hsa_pays_from = kDefaultHsaPaysFrom;
};

// The gates' kinds as asked for, and no numbers.
ResolvedGates KindsOf(const CompressionSpec& spec);

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
absl::Span<const Preset> Presets();
// What ResolvedGates::method can be.
std::vector<std::string> MethodNames();

}  // namespace sluice
