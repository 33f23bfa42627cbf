// Role: what the prefill loop does next: a pure decision over the queue and the passes under way.
// Why: short prompts share a pass; a long one runs alone and gives way to short ones between two layers, but
// never starves: after each batch of short ones it gets a layer. Threads: none.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace sluice {

struct SchedulerOptions {
  int short_tokens = 2048;      // prompts with at most so many new tokens are short
  int max_batch_tokens = 4096;  // of one pass over short prompts
  int max_batch_prompts = 16;
};

struct QueuedPrompt {
  int new_tokens = 0;  // an upper bound: history hits are found when the prompt starts
  bool fits = true;    // its kept set and scratch fit the memory that is free now
};

struct SchedulerState {
  absl::Span<const QueuedPrompt> queue;  // in order of arrival
  bool long_pass = false;                // a long prompt is between two layers
  bool short_pass = false;               // a batch of short ones is
  bool long_pass_owed = false;           // a short pass ended since the long pass last ran a layer
};

struct Decision {
  enum Kind { kWait, kStart, kRunShort, kRunLong };
  Kind kind = kWait;
  std::vector<int> start;  // kStart: queue entries that share the new pass, ascending
  bool is_long = false;    // kStart
};

Decision Decide(const SchedulerState& state, const SchedulerOptions& options);

}  // namespace sluice
