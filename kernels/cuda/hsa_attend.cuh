// Role: the second half of hybrid sparse attention: a warp attends to steps of 16 chosen rows by the products
// of decode_tile.cuh. Threads: whole warps.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

template <int kDim, int kHeads>
constexpr int HsaQueryFragments = kHeads == 4 ? kDim / 32 * kWarp : kQueryFragments<kDim, kHeads / 8>;

// Queries in shared memory -> fragments. By the whole block.
template <int kDim, int kHeads>
__device__ void SplitHsaQueries(const float* q, int group, uint4* to) {
  if constexpr (kHeads > 4) {
    SplitQueries<kDim, kHeads / 8>(q, group, to);
  } else {
    for (int at = threadIdx.x; at < HsaQueryFragments<kDim, kHeads>; at += blockDim.x) {
      const int lane = at % kWarp, block = at / kWarp, g = lane / 4;
      const float4* x = reinterpret_cast<const float4*>(q + g % 4 * kDim + 32 * block + lane % 4 * 8);
      const float4 a = x[0], b = x[1];
      uint4 v = make_uint4(PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w));
      if (g >= 4) {
        auto rest = [](float x, float y, uint32_t h) { return PackBf16(x - LowBf16(h), y - HighBf16(h)); };
        v = make_uint4(rest(a.x, a.y, v.x), rest(a.z, a.w, v.y), rest(b.x, b.y, v.z), rest(b.z, b.w, v.w));
      }
      to[at] = v;
    }
  }
}

__device__ inline int32_t PlaceOf(const int32_t* page_ids, int row) {
  return page_ids[row / PagedKv::kPageRows] * (2 * PagedKv::kPageRows) + row % PagedKv::kPageRows;
}

// The K and V of a step of rows, into L2: a lane half a row of each.
template <int kDim>
__device__ void PrefetchStep(const PagedCache& cache, const int32_t* page_ids, const int32_t* rows,
                             int tokens, int step) {
  const int lane = threadIdx.x % kWarp, i = step * kStep + lane / 2;
  if (i >= tokens || (kDim == 64 && lane % 2 == 1)) return;
  const Bf16* k = cache.K<Bf16>(PlaceOf(page_ids, rows[i])) + lane % 2 * 64;
  Prefetch(k);
  Prefetch(k + PagedKv::kPageRows * kDim);
}

// Steps first, first + kStride, ... of 16 of the `tokens` rows: 16 bytes a lane from global memory straight
// into fragments. Past the end the last row stands in, unseen.
template <int kDim, int kHeads, int kStride, class State>
__device__ void AttendSteps(const PagedCache& cache, const int32_t* page_ids, const int32_t* rows, int tokens,
                            int first, const uint4* q, float scale, State& state) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  auto row_of = [&](int i) { return cache.K<Bf16>(PlaceOf(page_ids, rows[min(i, tokens - 1)])); };
#pragma unroll 1
  for (int at = first * kStep; at < tokens; at += kStride * kStep) {
    KeyStep<kDim> k;
    ValueStep<kDim> v;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* row = row_of(at + 8 * half + g) + 8 * t;
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b) k.x[b][half] = LoadStream(row + 32 * b);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Bf16* row = row_of(at + v.RowOf(j, t)) + PagedKv::kPageRows * kDim + 8 * g;
#pragma unroll
      for (int c = 0; c < kDim / 64; ++c) v.x[j][c] = LoadStream(row + 64 * c);
    }
    const bool seen0 = at + g < tokens, seen1 = at + 8 + g < tokens;
    if constexpr (kHeads == 4) {
      float s[4];
      ScoreFourHeads<kDim>(k, q, s);
      WeighFourHeads<kDim>(v, s, seen0, seen1, scale, state);
    } else {
      float s[kHeads / 8][4];
      ScoreStep<kDim, kHeads / 8>(k, q, s);
      WeighStep<kDim, kHeads / 8>(v, s, seen0, seen1, scale, state);
    }
  }
}

}  // namespace sluice
