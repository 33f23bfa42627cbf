// Role: pays at start what the first prompt would pay: kernels that cuDNN compiles, kernels that are loaded
// when they first run, scratch memory. Threads: the one that owns the model, before any loop runs it.
#pragma once

#include "absl/status/status.h"
#include "common/model/ranked_model.h"

namespace sluice {

// A short prompt through all layers, on all ranks.
absl::Status WarmUpPrefill(const RankedModel& model);

}  // namespace sluice
