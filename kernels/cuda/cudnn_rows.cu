#include "kernels/cuda/cudnn_rows.h"

#include "kernels/cuda/device.cuh"

namespace sluice {
namespace {

// One thread a head.
__global__ void Write(CudnnLengths to, int kv_heads, int queries, int keys, int64_t q_head, int64_t k_head,
                      int64_t v_head) {
  for (int b = threadIdx.x; b <= kv_heads; b += blockDim.x) {
    if (b < kv_heads) {
      to.queries[b] = queries;
      to.keys[b] = keys;
    }
    to.q[b] = b * q_head;
    to.k[b] = b * k_head;
    to.v[b] = b * v_head;
  }
}

// One thread 8 values of a row. aligned: rows of out start at 16 bytes.
__global__ void Widen8(const uint4* x, int64_t n, int64_t cols8, float* out, int64_t out_stride,
                       bool aligned) {
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = at / cols8, c = at % cols8 * 8;
  if (row >= n) return;
  const uint4 v = x[at];
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
  float y[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    y[2 * j] = LowBf16(pairs[j]);
    y[2 * j + 1] = HighBf16(pairs[j]);
  }
  float* to = out + row * out_stride + c;
  if (aligned) {
    reinterpret_cast<float4*>(to)[0] = reinterpret_cast<float4&>(y[0]);
    reinterpret_cast<float4*>(to)[1] = reinterpret_cast<float4&>(y[4]);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = y[j];
  }
}

// grid heads.
__global__ void CopyColumns(const float* stats, int64_t stats_stride, int first, int n, float* lse,
                            int64_t lse_stride) {
  for (int j = threadIdx.x; j < n; j += blockDim.x)
    lse[blockIdx.x * lse_stride + j] = stats[blockIdx.x * stats_stride + first + j];
}

}  // namespace

void WriteCudnnLengths(const CudnnLengths& to, int kv_heads, int queries, int keys, int64_t q_head,
                       int64_t k_head, int64_t v_head, cudaStream_t stream) {
  Write<<<1, 128, 0, stream>>>(to, kv_heads, queries, keys, q_head, k_head, v_head);
}

void WidenRows(const void* x, int64_t n, int64_t cols, float* out, int64_t out_stride, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(out) % 16 == 0 && out_stride % 4 == 0;
  Widen8<<<CeilDiv(n * (cols / 8), 256), 256, 0, stream>>>(static_cast<const uint4*>(x), n, cols / 8, out,
                                                           out_stride, aligned);
}

void CopyLse(const float* stats, int64_t stats_stride, int heads, int first, int n, float* lse,
             int64_t lse_stride, cudaStream_t stream) {
  CopyColumns<<<heads, 128, 0, stream>>>(stats, stats_stride, first, n, lse, lse_stride);
}

}  // namespace sluice
