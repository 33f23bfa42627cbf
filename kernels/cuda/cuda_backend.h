// Role: the CUDA backend: bf16 weights, f32 activations, one stream per queue. A build without nvcc has
// absent.cc in its place, so that callers need no #if.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sluice {

// GPUs this process may use. FailedPrecondition says why there are none: built without CUDA, no driver, no
// device.
absl::StatusOr<int> CountCudaDevices();

// FailedPrecondition: no such device, one that is no Hopper, or a missing library.
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(int device);

}  // namespace sluice
