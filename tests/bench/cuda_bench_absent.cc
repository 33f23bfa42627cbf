// The CUDA bench of a build without CUDA.
#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/bench_device.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<BenchDevice>> NewCudaBench() { return CountCudaDevices().status(); }

}  // namespace sluice
