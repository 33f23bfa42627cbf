// Role: kernels that start while the one queued before them still runs (programmatic dependent launch). Why:
// a decode step is hundreds of kernels of a few microseconds; what a kernel does before it needs its input,
// such as fetching weights, then costs nothing. A kernel launched so calls WaitForPredecessor() before it
// reads what an op wrote and before it writes anything. Any kernel may let its successor start; one that does
// not does so when it ends. Threads: as Ops.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace sluice {

// Everything queued before is complete and visible.
__device__ inline void WaitForPredecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ inline void LetSuccessorStart() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// As kernel<<<grid, threads, shared, stream>>>(arguments...).
template <class... Parameters, class... Arguments>
void LaunchEarly(void (*kernel)(Parameters...), dim3 grid, dim3 threads, size_t shared, cudaStream_t stream,
                 Arguments&&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

}  // namespace sluice
