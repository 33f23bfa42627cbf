// Role: the second half of hybrid sparse attention: a warp attends to steps of 16 chosen rows. Up to four
// heads take two of a product's 8 columns each, for the high and the low bf16 part of queries and weights;
// more heads take the products of decode_tile.cuh. Threads: whole warps.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

template <int kDim, int kHeads>
constexpr int HsaQueryFragments = kHeads == 4 ? kDim / 32 * kWarp : kQueryFragments<kDim, kHeads / 8>;

// Of four heads: columns h and h + 4 of all products are head h's, with its high parts and its low ones.
// max, sum: of heads 2 (t % 2) and the next. o: as WarpState's, by columns.
template <int kDim>
struct FourHeadState {
  float max[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
  float o[kDim / 16][4];
  __device__ FourHeadState() {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) o[i][k] = 0;
  }
};

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

// Scores of a step: of row g for heads 2 (t % 2) and the next, then of row g + 8.
template <int kDim>
__device__ void ScoreFourHeads(const KeyStep<kDim>& k, const uint4* q, float (&s)[4]) {
  const int lane = threadIdx.x % kWarp;
  float other[4] = {};  // two chains of products side by side
#pragma unroll
  for (int c = 0; c < 4; ++c) s[c] = 0;
#pragma unroll
  for (int b = 0; b < kDim / 32; ++b) {
    const uint4 x = q[b * kWarp + lane];
    MmaBf16(s, k.x[b][0].x, k.x[b][1].x, k.x[b][0].y, k.x[b][1].y, x.x, x.y);
    MmaBf16(other, k.x[b][0].z, k.x[b][1].z, k.x[b][0].w, k.x[b][1].w, x.z, x.w);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    s[c] += other[c];
    s[c] += __shfl_xor_sync(kAllLanes, s[c], 2);
  }
}

template <int kDim>
__device__ void WeighFourHeads(const ValueStep<kDim>& v, const float (&s)[4], bool seen0, bool seen1,
                               float scale, FourHeadState<kDim>& state) {
  const bool low = threadIdx.x % 4 >= 2;  // this lane's columns are low parts
  float p[4], shrink[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float s0 = seen0 ? s[c] : kMinusInfinity, s1 = seen1 ? s[2 + c] : kMinusInfinity;
    float top = fmaxf(s0, s1);
#pragma unroll
    for (int step_lane = 4; step_lane < kWarp; step_lane *= 2)
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step_lane));
    const float old = state.max[c], now = fmaxf(old, top);
    const float base = now == kMinusInfinity ? 0 : now * scale;
    p[c] = Exp2(s0 * scale - base);
    p[2 + c] = Exp2(s1 * scale - base);
    shrink[c] = Exp2(old * scale - base);
    state.max[c] = now;
    state.sum[c] = state.sum[c] * shrink[c] + (p[c] + p[2 + c]);
  }
  uint32_t weights[2];  // as B fragments: rows 0-7 and 8-15
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t high = PackBf16(p[2 * half], p[2 * half + 1]);
    const uint32_t rest = PackBf16(p[2 * half] - LowBf16(high), p[2 * half + 1] - HighBf16(high));
    weights[half] = Transpose8x8(low ? rest : high);
  }
#pragma unroll
  for (int tile = 0; tile < kDim / 16; ++tile) {
    float(&o)[4] = state.o[tile];
    o[0] *= shrink[0];
    o[1] *= shrink[1];
    o[2] *= shrink[0];
    o[3] *= shrink[1];
    const uint32_t w0 = Word(v.x[0][tile / 4], tile % 4), w1 = Word(v.x[1][tile / 4], tile % 4),
                   w2 = Word(v.x[2][tile / 4], tile % 4), w3 = Word(v.x[3][tile / 4], tile % 4);
    const uint32_t a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632),
                   a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
    MmaBf16(o, a0, a1, a2, a3, weights[0], weights[1]);
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

template <int kDim, int kHeads>
using HsaState =
    std::conditional_t<kHeads == 4, FourHeadState<kDim>, WarpState<kDim, kHeads == 4 ? 1 : kHeads / 8>>;

}  // namespace sluice
