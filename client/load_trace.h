// Role: a recorded load, to be replayed: when requests came, how long they were, and which beginnings they
// shared. A trace has no text; ours has the same lengths and shares the same beginnings.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/load_prompts.h"

namespace sluice {

inline constexpr int kTraceBlockTokens = 512;

struct TraceRequest {
  absl::Duration arrival;  // since the trace began
  int input_tokens = 0, output_tokens = 0;
  std::vector<int64_t> blocks;  // of kTraceBlockTokens, the last one may be shorter; equal ids: equal text
};

// JSONL in the format of Mooncake's traces: {"timestamp" [ms, ascending], "input_length", "output_length",
// "hash_ids"} a line. Errors name the line.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path);

// The largest factor up to 1 by which all lengths shrink until prompt and answer of every request fit a
// context of so many tokens; 0: unknown, all fit.
double ScaleThatFits(const std::vector<TraceRequest>& trace, int64_t context);

// `request` as one message, with its lengths times `scale`. Two runs share no text.
Dialogue TraceDialogue(const TraceRequest& request, double scale, const TokenFit& fit, uint64_t seed,
                       uint64_t run);

}  // namespace sluice
