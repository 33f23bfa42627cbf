// The CUDA backend of a build without CUDA.
#include "kernels/cuda/cuda_backend.h"

namespace sluice {

absl::StatusOr<int> CountCudaDevices() {
  return absl::FailedPreconditionError("this build has no CUDA: configure where nvcc 13 is found");
}

absl::StatusOr<std::string> CudaPciAddress(int) { return CountCudaDevices().status(); }

void PrepareForRanks() {}

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(int) { return CountCudaDevices().status(); }

absl::StatusOr<std::unique_ptr<BackendGroup>> NewCudaGroup(int, int) { return CountCudaDevices().status(); }

}  // namespace sluice
