#include "common/compression/compression_spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kSinks = 4;     // of streaming_llm
constexpr int kPyramid = 20;  // pyramidkv: the highest layer keeps 1 / 20 of the budget
constexpr int kMaxChunk = 1024;
constexpr int kQuestPage = 16, kQuestLeastPages = 3, kMaxPage = 1024;
constexpr int kSparqChannels = 16;
constexpr int kMaxWindow = 1024;
constexpr int kMaxKernel = 1023;
constexpr float kMaxReach = 1024;
constexpr int kMaxSplitTokens = 128;

absl::Status Invalid(const absl::AlphaNum& a, const absl::AlphaNum& b = "", const absl::AlphaNum& c = "",
                     const absl::AlphaNum& d = "") {
  return absl::InvalidArgumentError(absl::StrCat("compression: ", a, b, c, d));
}

absl::StatusOr<const Preset*> FindPreset(const std::string& name) {
  for (const Preset& preset : Presets()) {
    if (name == preset.name || (name.empty() && preset.name == std::string("full"))) return &preset;
  }
  const auto append_name = [](std::string* out, const Preset& preset) { out->append(preset.name); };
  return Invalid("unknown preset \"", name, "\"; known are ", absl::StrJoin(Presets(), ", ", append_name));
}

CompressionSpec Override(CompressionSpec spec, const CompressionSpec& with) {
  const auto take = [&](auto CompressionSpec::*field) {
    if ((with.*field).has_value()) spec.*field = with.*field;
  };
  take(&CompressionSpec::propagation);
  take(&CompressionSpec::tsp_layer);
  take(&CompressionSpec::tsp_rate);
  take(&CompressionSpec::raw_scores);
  take(&CompressionSpec::retention);
  take(&CompressionSpec::selection);
  take(&CompressionSpec::selection_page);
  take(&CompressionSpec::selection_channels);
  take(&CompressionSpec::history);
  take(&CompressionSpec::window);
  take(&CompressionSpec::pooling);
  take(&CompressionSpec::pool_per_head);
  take(&CompressionSpec::round_weights);
  take(&CompressionSpec::chunk);
  take(&CompressionSpec::reuse);
  take(&CompressionSpec::one_set);
  take(&CompressionSpec::head_floor);
  take(&CompressionSpec::budget_tokens);
  take(&CompressionSpec::keep_ratio);
  take(&CompressionSpec::min_prompt_tokens);
  take(&CompressionSpec::split_max_tokens);
  take(&CompressionSpec::subset_coverage);
  take(&CompressionSpec::fallback_full);
  take(&CompressionSpec::dense_if_faster);
  return spec;
}

absl::Status CheckPooling(const Pooling& pooling) {
  if (pooling.kind == Pooling::kFading) {
    for (float reach : {pooling.after, pooling.before}) {
      if (!(reach > 0 && reach <= kMaxReach)) {
        return Invalid("pooling: fading reach ", reach, " is not in (0, 1024] tokens");
      }
    }
  } else if (pooling.kernel < 1 || pooling.kernel > kMaxKernel || pooling.kernel % 2 == 0) {
    return Invalid("pooling: kernel ", pooling.kernel, " is not odd and in [1, 1023]");
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const CompressionSpec& spec, const GateContext& context) {
  if (context.prompt_tokens < 1 || context.turn_tokens < 1) return Invalid("the prompt is empty");
  if (spec.budget_tokens && spec.keep_ratio) {
    return Invalid("budget_tokens and keep_ratio exclude each other: set one");
  }
  if (spec.budget_tokens && *spec.budget_tokens < kMinBudgetTokens) {
    return Invalid("budget_tokens ", *spec.budget_tokens, " is below ", kMinBudgetTokens);
  }
  if (spec.keep_ratio && !(*spec.keep_ratio > 0 && *spec.keep_ratio <= 1)) {
    return Invalid("keep_ratio ", *spec.keep_ratio, " is not in (0, 1]");
  }
  if (spec.tsp_rate && !(*spec.tsp_rate > 0 && *spec.tsp_rate <= 1)) {
    return Invalid("tsp rate ", *spec.tsp_rate, " is not in (0, 1]");
  }
  if (spec.tsp_layer && (*spec.tsp_layer < 0 || *spec.tsp_layer > context.n_layers - 2)) {
    return Invalid("tsp layer ", *spec.tsp_layer, " has no layer after it to save: use 0 to ",
                   context.n_layers - 2);
  }
  if (spec.window && (*spec.window < 1 || *spec.window > kMaxWindow)) {
    return Invalid("window ", *spec.window, " is not in [1, 1024]");
  }
  if (spec.chunk && (*spec.chunk < 1 || *spec.chunk > kMaxChunk)) {
    return Invalid("chunk ", *spec.chunk, " is not in [1, 1024]");
  }
  if (spec.reuse && (*spec.reuse < 1 || *spec.reuse > context.n_layers)) {
    return Invalid("reuse ", *spec.reuse, " is not in [1, the model's layers]: ", context.n_layers);
  }
  if (spec.head_floor && !(*spec.head_floor >= 0 && *spec.head_floor <= 1)) {
    return Invalid("head_floor ", *spec.head_floor, " is not in [0, 1]");
  }
  if (spec.selection_page && (*spec.selection_page < 2 || *spec.selection_page > kMaxPage)) {
    return Invalid("selection page ", *spec.selection_page, " is not in [2, 1024]");
  }
  if (spec.selection_channels &&
      (*spec.selection_channels < 1 || *spec.selection_channels > context.head_dim)) {
    return Invalid("selection channels ", *spec.selection_channels,
                   " is not in [1, the model's head_dim]: ", context.head_dim);
  }
  if (spec.min_prompt_tokens && *spec.min_prompt_tokens < 0) {
    return Invalid("min_prompt_tokens ", *spec.min_prompt_tokens, " is negative");
  }
  if (spec.split_max_tokens && *spec.split_max_tokens < 1) {
    return Invalid("split max_tokens ", *spec.split_max_tokens, " is not positive");
  }
  return spec.pooling ? CheckPooling(*spec.pooling) : absl::OkStatus();
}

void Off(OffCause cause, const std::string& why, ResolvedGates& gates) {
  gates.off_causes.push_back(cause);
  if (!gates.off_reason.empty()) gates.off_reason += "; ";
  gates.off_reason += why;
}

bool AnyGate(const ResolvedGates& gates) {
  return gates.propagation.kind != PropagationKind::kNone || gates.retention.kind != RetentionKind::kFull ||
         gates.selection.kind != SelectionKind::kDense;
}

bool SameKinds(const ResolvedGates& a, const ResolvedGates& b) {
  return a.propagation.kind == b.propagation.kind && a.retention.kind == b.retention.kind &&
         a.selection.kind == b.selection.kind && a.history == b.history;
}

Observation ObservationOf(const CompressionSpec& spec, int window) {
  return {.window = window,
          .pooling = spec.pooling.value_or(Pooling{}),
          .pool_per_head = spec.pool_per_head.value_or(false),
          .round_weights = spec.round_weights.value_or(false)};
}

bool IsSparq(SelectionKind kind) {
  return kind == SelectionKind::kSparq || kind == SelectionKind::kSparqWithoutMean;
}

// Of every selection that reads few rows but hsa, which has a split of its own.
SelectionGate ResolveSelection(const CompressionSpec& spec, const GateContext& context, int budget,
                               SelectionKind kind) {
  SelectionGate gate = {.kind = kind, .tokens = budget};
  if (kind == SelectionKind::kQuest) {
    gate.page = spec.selection_page.value_or(kQuestPage);
    gate.channels = context.head_dim;
    // Whole pages. The published floor of three belongs to the published page.
    gate.tokens = gate.page * std::max(budget / gate.page, spec.selection_page ? 1 : kQuestLeastPages);
  } else if (IsSparq(kind)) {
    gate.page = 1;
    gate.channels = std::min(spec.selection_channels.value_or(kSparqChannels), context.head_dim);
  }
  return gate;
}

// Whether the method ranks rows by what the observation window attends to, and always keeps the window.
bool Observes(RetentionKind kind) {
  return kind == RetentionKind::kSnapKv || kind == RetentionKind::kChunkKv ||
         kind == RetentionKind::kPyramidKv || kind == RetentionKind::kAdaKv;
}

void ResolvePropagation(const CompressionSpec& spec, const GateContext& context, int budget, int window,
                        bool later_turn, ResolvedGates& gates) {
  PropagationGate& gate = gates.propagation;
  if (gate.kind == PropagationKind::kNone) return;
  const std::optional<int> layer = spec.tsp_layer ? spec.tsp_layer : context.tsp_layer;
  const auto off = [&](OffCause cause, const char* why) {
    gate = PropagationGate{};
    Off(cause, why, gates);
  };
  if (gates.history == HistoryKind::kKeep && !spec.subset_coverage.value_or(false)) {
    return off(OffCause::kHistoryKeep,
               "propagation is off: history=keep needs every row of every layer (coverage=subset allows it)");
  }
  if (later_turn) {
    return off(OffCause::kLaterTurn,
               "propagation is off: it serves the first turn of a session with history=evict only");
  }
  if (!layer) {
    return off(OffCause::kUnknownLayer,
               "propagation is off: the layer is unknown for this model (set tsp layer)");
  }
  gate.layer = *layer;
  // What rerun leaves of the prompt is all that decode gets: the budget, unless a rate says otherwise.
  const bool by_budget = gate.kind == PropagationKind::kRerun && !spec.tsp_rate;
  const int rows = by_budget ? budget : static_cast<int>(context.prompt_tokens * spec.tsp_rate.value_or(0.2));
  gate.rows = std::max(rows, window);
  gate.observation = ObservationOf(spec, window);
  gate.observation.raw = spec.raw_scores.value_or(false);
}

// Arithmetic budgets (algorithms.md §11) whose mean over the layers is the budget exactly.
void ResolvePyramid(int n, int layers, int window, RetentionGate& gate) {
  const int each = gate.budget - window;
  int least = each / kPyramid, most = 2 * each - least;
  if (most >= n - window) {
    most = n - window;
    least = 2 * each - most;
  }
  if (n < 2 * each || layers < 2) least = most = each;
  gate.step = layers < 2 ? 0 : (most - least) / (layers - 1);
  const int excess = layers * (most - each) - gate.step * (layers * (layers - 1) / 2);
  gate.top = window + most - excess / layers;
  gate.shorter = excess % layers;
}

// After ResolvePropagation.
void ResolveNumbers(const CompressionSpec& spec, const GateContext& context, int budget, int window,
                    ResolvedGates& gates) {
  RetentionGate& retention = gates.retention;
  const bool reruns = gates.propagation.kind == PropagationKind::kRerun;
  const int prompt = reruns ? std::min(context.prompt_tokens, gates.propagation.rows) : context.prompt_tokens;
  retention.budget = budget;
  int least = 0;
  if (Observes(retention.kind)) {
    retention.observation = ObservationOf(spec, window);
    least = window;
  } else if (retention.kind == RetentionKind::kStreamingLlm) {
    retention.sinks = kSinks;
    least = kSinks + 1;
  } else if (retention.kind == RetentionKind::kH2o) {
    least = 2;
  }
  if (gates.selection.kind == SelectionKind::kHsa) {
    const int m = spec.split_max_tokens.value_or(std::min(context.max_tokens, kMaxSplitTokens));
    const RocketSplit split = SplitBudget(prompt, m, budget, context.context, context.head_dim);
    retention.budget = std::max(split.prompt_budget, least);
    // Without stage one HSA faces the whole cache.
    gates.selection = retention.kind == RetentionKind::kFull ? SplitHsa(prompt + m, budget, context.head_dim)
                                                             : split.selection;
  } else if (gates.selection.kind != SelectionKind::kDense) {
    gates.selection = ResolveSelection(spec, context, budget, gates.selection.kind);
  }
  if (retention.kind == RetentionKind::kFull) retention.budget = 0;
  if (retention.kind == RetentionKind::kChunkKv) {
    retention.chunk = spec.chunk.value_or(10);
    retention.reuse = spec.reuse.value_or(1);
    retention.one_set = spec.one_set.value_or(false);
  } else if (retention.kind == RetentionKind::kPyramidKv) {
    ResolvePyramid(prompt, context.n_layers, window, retention);
  } else if (retention.kind == RetentionKind::kAdaKv) {
    const int each = retention.budget - window;
    retention.floor = static_cast<float>(spec.head_floor.value_or(0.2));
    // All that the layer's heads share out, and the head's own floor.
    const double shared = (1.0 - retention.floor) * each * context.n_kv_heads;
    retention.most = window + static_cast<int>(std::ceil(shared + retention.floor * each));
  } else if (retention.kind == RetentionKind::kH2o) {
    retention.recent = retention.budget / 2;
    retention.observation.round_weights = spec.round_weights.value_or(false);
  }
  const bool budgeted =
      reruns || retention.kind != RetentionKind::kFull || gates.selection.kind != SelectionKind::kDense;
  gates.budget_tokens = budgeted ? budget : 0;
}

bool IsOffFor(const ResolvedGates& gates, OffCause cause) {
  return std::find(gates.off_causes.begin(), gates.off_causes.end(), cause) != gates.off_causes.end();
}

// Rows that a step of HSA leaves unread.
int UnreadRows(const ResolvedGates& gates, const GateContext& context) {
  const int rows = gates.propagation.kind == PropagationKind::kRerun
                       ? std::min(context.prompt_tokens, gates.propagation.rows)
                       : context.prompt_tokens;
  const bool all = gates.retention.kind == RetentionKind::kFull;
  return (all ? rows : std::min(gates.retention.budget, rows)) - gates.budget_tokens;
}

void PreferDense(ResolvedGates& gates) {
  gates.selection = SelectionGate{};
  const bool budgeted =
      gates.retention.kind != RetentionKind::kFull || gates.propagation.kind == PropagationKind::kRerun;
  if (!budgeted) gates.budget_tokens = 0;
  Off(OffCause::kDenseIsFaster, "selection is off: reading all kept rows is faster (dense_if_faster)", gates);
}

}  // namespace

ResolvedGates KindsOf(const CompressionSpec& spec) {
  ResolvedGates gates;
  gates.propagation.kind = spec.propagation.value_or(PropagationKind::kNone);
  gates.retention.kind = spec.retention.value_or(RetentionKind::kFull);
  gates.selection.kind = spec.selection.value_or(SelectionKind::kDense);
  const bool propagates = gates.propagation.kind != PropagationKind::kNone;
  gates.history = spec.history.value_or(propagates ? HistoryKind::kEvict : HistoryKind::kKeep);
  return gates;
}

absl::StatusOr<ResolvedGates> ResolveGates(const CompressionSpec& request, const GateContext& context,
                                           const ResolvedGates* previous) {
  SLUICE_ASSIGN_OR_RETURN(const Preset* preset, FindPreset(request.preset));
  const CompressionSpec spec = Override(preset->spec, request);
  SLUICE_RETURN_IF_ERROR(CheckRanges(spec, context));

  ResolvedGates gates = KindsOf(spec);
  gates.method = SameKinds(gates, KindsOf(preset->spec)) ? preset->name : kCustomMethod;
  const bool reruns = gates.propagation.kind == PropagationKind::kRerun;
  if (spec.raw_scores.value_or(false) && !reruns) {
    return Invalid("raw_scores ranks the rows of rerun only: set propagation to rerun, or leave it out");
  }
  if (spec.raw_scores.value_or(false) && spec.pooling && spec.pooling->kind == Pooling::kFading) {
    return Invalid("raw_scores may be negative, and a negative score cannot fade: set pooling to max or avg");
  }
  if (!AnyGate(gates)) return gates;

  const int window = spec.window.value_or(32);
  int budget = spec.budget_tokens.value_or(kDefaultBudgetTokens);
  if (spec.keep_ratio) {
    // A ratio of a short prompt may fall below what the methods can work with.
    budget =
        std::max({static_cast<int>(context.prompt_tokens * *spec.keep_ratio), kMinBudgetTokens, window + 1});
  }
  if (spec.selection_page && gates.selection.kind != SelectionKind::kQuest) {
    return Invalid("selection page is quest's: set selection to quest, or leave it out");
  }
  if (spec.selection_channels && !IsSparq(gates.selection.kind)) {
    return Invalid("selection channels are sparq's: set selection to sparq, or leave them out");
  }
  if (gates.selection.kind != SelectionKind::kDense && context.sliding_window) {
    const std::string why =
        absl::StrCat(NameOf(gates.selection.kind), " is not served on a model with sliding-window layers");
    if (!spec.fallback_full.value_or(false)) {
      return Invalid("selection ", why, ": use selection dense (preset snapkv), or allow the fallback");
    }
    gates.selection.kind = SelectionKind::kDense;
    Off(OffCause::kSlidingWindow, absl::StrCat("selection is off: ", why), gates);
  }
  if (Observes(gates.retention.kind) && gates.selection.kind != SelectionKind::kHsa && budget <= window) {
    return Invalid("budget_tokens ", budget, absl::StrCat(" leaves no row beside the window of ", window),
                   ": raise budget_tokens or lower window");
  }

  const int64_t min_prompt = spec.min_prompt_tokens ? *spec.min_prompt_tokens : int64_t{2} * budget;
  if (context.prompt_tokens < min_prompt) {
    ResolvedGates off;
    off.method = gates.method;
    off.history = gates.history;
    Off(OffCause::kShortPrompt,
        absl::StrCat("everything is off: the prompt of ", context.prompt_tokens,
                     " tokens is below min_prompt_tokens ", min_prompt),
        off);
    return off;
  }

  // The observation window holds tokens of this turn only.
  const int turn_window = std::min(window, context.turn_tokens);
  // A rerun leaves nothing to stand on: its next turn begins like a first one.
  const bool evicted = gates.history == HistoryKind::kEvict && previous != nullptr &&
                       previous->history == HistoryKind::kEvict && !reruns;
  ResolvePropagation(spec, context, budget, turn_window, evicted, gates);

  const bool may_be_dense =
      gates.selection.kind == SelectionKind::kHsa && spec.dense_if_faster.value_or(false);
  // What an earlier turn decided stays.
  const bool stays_dense = may_be_dense && evicted && IsOffFor(*previous, OffCause::kDenseIsFaster);
  const bool keeps_numbers =
      evicted && AnyGate(*previous) && previous->retention.kind == gates.retention.kind &&
      previous->selection.kind == (stays_dense ? SelectionKind::kDense : gates.selection.kind);
  if (keeps_numbers) {
    gates.retention = previous->retention;
    gates.selection = previous->selection;
    gates.budget_tokens = previous->budget_tokens;
  } else {
    ResolveNumbers(spec, context, budget, window, gates);
  }
  const bool pays = keeps_numbers || UnreadRows(gates, context) >= context.hsa_pays_from;
  if (stays_dense || (may_be_dense && !pays)) PreferDense(gates);
  if (Observes(gates.retention.kind)) {
    gates.retention.observation.window = std::min(turn_window, gates.retention.budget);
  } else if (gates.retention.kind == RetentionKind::kH2o) {
    gates.retention.observation.window = context.turn_tokens;
  }
  return gates;
}

}  // namespace sluice
