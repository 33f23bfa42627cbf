// Role: the rows that the observation window attends to most in one layer, over all its heads, and the
// window. Threads: stateless.
#pragma once

#include "absl/status/statusor.h"
#include "common/compression/propagation/propagation_policy.h"

namespace sluice {

// [gate.rows] i32 ascending, from the workspace.
absl::StatusOr<TensorView> ObservedRows(const LayerView& view, const PropagationGate& gate, Ops& ops,
                                        Workspace& workspace);

}  // namespace sluice
