// Role: lets kernels take more dynamic shared memory than 48 KB. Why here: the limit belongs to the function,
// not to a launch, and the latest one counts. Threads that launch a kernel with limits of their own would
// undo each other's between setting and launch; so every caller sets the same one, all that a block may have.
// Threads: any.
#pragma once

#include <cuda_runtime.h>

namespace sluice {

constexpr int kMostSharedBytes = 227 << 10;  // of a block of sm_90, static and dynamic

template <class Kernel>
cudaError_t AllowSharedMemory(Kernel kernel) {
  cudaFuncAttributes uses;
  const cudaError_t error = cudaFuncGetAttributes(&uses, kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kMostSharedBytes - static_cast<int>(uses.sharedSizeBytes));
}

}  // namespace sluice
