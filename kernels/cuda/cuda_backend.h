// Role: the CUDA backend: bf16 weights, f32 activations, one stream per queue. A build without nvcc has
// absent.cc in its place, so that callers need no #if.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/backend_group.h"

namespace sluice {

// GPUs this process may use. FailedPrecondition says why there are none: built without CUDA, no driver, no
// device.
absl::StatusOr<int> CountCudaDevices();

// "0000:17:00.0".
absl::StatusOr<std::string> CudaPciAddress(int device);

// What several ranks in one process ask of CUDA and NCCL, where the environment says nothing else. Before the
// process' first CUDA call.
void PrepareForRanks();

// FailedPrecondition: no such device, one that is no Hopper, or a missing library.
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(int device);

// GPUs `first` .. `first` + ranks - 1 as ranks of one model, over NCCL. FailedPrecondition, too, where they
// cannot reach each other's memory.
absl::StatusOr<std::unique_ptr<BackendGroup>> NewCudaGroup(int first, int ranks);

}  // namespace sluice
