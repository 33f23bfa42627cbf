// Role: scores of 64 neighbours from lines of a chunk of bounds, one line a channel: a warp takes every
// eighth channel, a lane two neighbours. Threads: a whole block of kLineThreads.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"

namespace sluice {

constexpr int kLineThreads = 256, kLineWarps = kLineThreads / kWarp;
constexpr int kLineHeads = 8;                      // query heads at a time
constexpr int kLineValues = PagedKv::kChunkPages;  // of a line

__device__ inline float2 LoadPair(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ inline float2 LoadPair(const Bf16* p) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(p);
  return make_float2(LowBf16(pair), HighBf16(pair));
}

struct LineSums {
  float parts[kLineWarps][kLineHeads][kLineValues];
};

// own: a lane's two sums over its warp's channels, of each head. visit(head, value, sum over all channels) by
// some thread for each of n_heads heads and 64 values; warps are added in order.
template <class Visit>
__device__ void SumOverWarps(const float2 (&own)[kLineHeads], int n_heads, LineSums& s, Visit visit) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  __syncthreads();  // the last use of s is over
#pragma unroll
  for (int i = 0; i < kLineHeads; ++i)
    if (i < n_heads) *reinterpret_cast<float2*>(&s.parts[warp][i][2 * lane]) = own[i];
  __syncthreads();
  for (int at = threadIdx.x; at < n_heads * kLineValues; at += kLineThreads) {
    const int head = at / kLineValues, value = at % kLineValues;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kLineWarps; ++w) sum += s.parts[w][head][value];
    visit(head, value, sum);
  }
}

}  // namespace sluice
