// Role: what attention by cuDNN needs around it on the GPU: lengths and offsets in device memory before, f32
// outputs from bf16 after. Threads: queues kernels on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice {

// What a call tells cuDNN of its KV heads, each of them a sequence of its own there. Device memory, 16-byte
// aligned arrays.
struct CudnnLengths {
  int32_t *queries, *keys;  // [kv_heads]
  int64_t *q, *k, *v;       // [kv_heads + 1]: where a head begins, in elements
};

// Head b begins at b * q_head, b * k_head, b * v_head.
void WriteCudnnLengths(const CudnnLengths& to, int kv_heads, int queries, int keys, int64_t q_head,
                       int64_t k_head, int64_t v_head, cudaStream_t stream);

// out[i, j] = x[i, j] for n rows of cols bf16 values (a multiple of 8), out f32.
void WidenRows(const void* x, int64_t n, int64_t cols, float* out, int64_t out_stride, cudaStream_t stream);

// lse[h, j] = stats[h, first + j] for j < n.
void CopyLse(const float* stats, int64_t stats_stride, int heads, int first, int n, float* lse,
             int64_t lse_stride, cudaStream_t stream);

}  // namespace sluice
