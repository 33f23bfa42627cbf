// Role: f32 rows to bf16 rows, nearest even: activations before a library's matrix product, weights at load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice {

// out[i, j] = x[i, j] for j < cols, 0 for cols <= j < out_stride (a multiple of 8). out: bf16, 16-byte
// aligned.
void RoundToBf16Rows(const float* x, int64_t x_stride, int64_t n, int64_t cols, void* out, int64_t out_stride,
                     cudaStream_t stream);

}  // namespace sluice
