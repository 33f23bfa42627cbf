// Role: what a CUDA runtime call says, as a Status that names the call. Threads: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// OK for cudaSuccess. ResourceExhausted: no memory; FailedPrecondition: no usable device or driver; else
// Internal.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace sluice
