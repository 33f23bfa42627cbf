// Role: how many rows a sequence has in each layer, and whether its gates can hold there.
// Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "common/engine/prefill_pass.h"

namespace sluice {

// K,V rows that precede the sequence's own in `layer`.
int HistoryRows(const PrefillSequence& sequence, int layer);

// InvalidArgument names what a pass over the sequence cannot do.
absl::Status CheckSequence(const PrefillSequence& sequence, const ModelShape& shape);

}  // namespace sluice
