#include "prefill_server/scheduler.h"

namespace sluice {
namespace {

std::vector<int> PickShort(absl::Span<const QueuedPrompt> queue, const SchedulerOptions& options) {
  std::vector<int> picked;
  int tokens = 0;
  for (int i = 0; i < static_cast<int>(queue.size()); ++i) {
    if (queue[i].new_tokens > options.short_tokens || !queue[i].fits) continue;
    if (!picked.empty() && tokens + queue[i].new_tokens > options.max_batch_tokens) break;
    if (static_cast<int>(picked.size()) == options.max_batch_prompts) break;
    tokens += queue[i].new_tokens;
    picked.push_back(i);
  }
  return picked;
}

}  // namespace

Decision Decide(const SchedulerState& state, const SchedulerOptions& options) {
  Decision decision;
  if (state.short_pass) {
    decision.kind = Decision::kRunShort;
    return decision;
  }
  if (state.long_pass && state.long_pass_owed) {
    decision.kind = Decision::kRunLong;
    return decision;
  }
  // First come, first served, but for a long prompt that would wait behind another long one.
  const bool head_is_long =
      !state.queue.empty() && state.queue[0].fits && state.queue[0].new_tokens > options.short_tokens;
  if (head_is_long && !state.long_pass) {
    decision.kind = Decision::kStart;
    decision.start = {0};
    decision.is_long = true;
    return decision;
  }
  decision.start = PickShort(state.queue, options);
  if (!decision.start.empty()) {
    decision.kind = Decision::kStart;
    return decision;
  }
  if (state.long_pass) {
    decision.kind = Decision::kRunLong;
    return decision;
  }
  for (int i = 0; i < static_cast<int>(state.queue.size()); ++i) {
    if (!state.queue[i].fits) continue;
    decision.kind = Decision::kStart;
    decision.start = {i};
    decision.is_long = true;
    return decision;
  }
  return decision;
}

}  // namespace sluice
