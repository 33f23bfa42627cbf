// Role: the plan that keeps every row: method `full`, and every other method where the layer fits its budget.
#pragma once

#include "absl/status/status.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

absl::Status KeepAll(const LayerView& view, Ops& ops, Workspace& workspace, LayerPlan* plan);

}  // namespace sluice
