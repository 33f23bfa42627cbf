// Role: the plan that keeps the rows which the observation window attends to most, and the window itself.
#pragma once

#include "absl/status/status.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

// budget: rows per KV head, the window among them.
absl::Status KeepObserved(const LayerView& view, const Observation& observation, int budget, Ops& ops,
                          Workspace& workspace, LayerPlan* plan);

}  // namespace sluice
