// Role: the exact token ids of a turn's prompt. Why it exists: a session's history is only found again if the
// ids of the earlier turns come back unchanged, so they are never tokenised twice (architecture.md §9.9).
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/served_model.h"

namespace sluice {

struct TurnPrompt {
  std::vector<int32_t> ids;
  int turn_tokens = 0;  // at the end of ids, new in this turn
};

// path: the turns before, from the first; empty for a first turn or a single request.
absl::StatusOr<TurnPrompt> BuildTurnPrompt(const ServedModel& model, absl::Span<const Turn> path,
                                           absl::Span<const TurnMessage> new_messages);

}  // namespace sluice
