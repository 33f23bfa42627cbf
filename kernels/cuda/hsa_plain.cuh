// Role: hybrid sparse attention on ordinary cores: f32 KV, and the head sizes and groups that the tensor core
// kernel does not take. Threads: as Ops.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/hsa_layout.cuh"

namespace sluice {

// A piece of scratch, in words.
int64_t PlainHsaWords(const HsaArgs& a);

cudaError_t PlainHsaAttention(const HsaArgs& a, DType dtype, cudaStream_t stream);

}  // namespace sluice
