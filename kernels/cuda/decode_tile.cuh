// Role: decode attention of a query group over staged rows by one warp on tensor cores: bf16 rows go from
// memory straight into fragments. Threads: whole warps.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

constexpr int kStep = 16;  // rows of a warp's step: the M of a tensor core product
constexpr float kLog2E = 1.4426950408889634f;

// Queries [group, kDim] as two bf16 parts in the order in which AttendStaged's lanes read them: the high
// parts, then the low ones. By the whole block.
template <int kDim, int kTiles>
constexpr int kQueryFragments = 2 * kTiles*(kDim / 32) * kWarp;

template <int kDim, int kTiles>
__device__ void SplitQueries(const float* q, int group, uint4* to) {
  constexpr int kHalf = kQueryFragments<kDim, kTiles> / 2;
  for (int at = threadIdx.x; at < kHalf; at += blockDim.x) {
    const int lane = at % kWarp, block = at / kWarp % (kDim / 32), tile = at / kWarp / (kDim / 32);
    const int head = 8 * tile + lane / 4;
    uint4 high = make_uint4(0, 0, 0, 0), low = high;
    if (head < group) {
      const float* x = q + head * kDim + 32 * block + lane % 4 * 8;
      auto split = [x](int i, uint32_t& h, uint32_t& l) {
        h = PackBf16(x[i], x[i + 1]);
        l = PackBf16(x[i] - LowBf16(h), x[i + 1] - HighBf16(h));
      };
      split(0, high.x, low.x);
      split(2, high.y, low.y);
      split(4, high.z, low.z);
      split(6, high.w, low.w);
    }
    to[at] = high;
    to[kHalf + at] = low;
  }
}

// Running softmax of a warp over its rows, for heads 2t and 2t + 1 of each tile of 8; o is [head, dim]
// transposed: tile i of 16 dims holds dim DimOf(i) in c0 and c1, the next in c2 and c3.
template <int kDim, int kTiles>
struct WarpState {
  float max[kTiles][2], sum[kTiles][2];
  float o[kDim / 16][kTiles][4];

  __device__ WarpState() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      max[i][0] = max[i][1] = kMinusInfinity;
      sum[i][0] = sum[i][1] = 0;
    }
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) o[i][j][k] = 0;
  }
  __device__ static int DimOf(int tile, int g) { return tile / 4 * 64 + g * 8 + tile % 4 * 2; }
};

__device__ inline uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// 16 rows of K and of V as a warp's fragments. Of K row 8 half + g at columns 32 b + 8 t .. + 7; of V rows
// 2t, 2t + 1, 2t + 8, 2t + 9 at columns 64 c + 8 g .. + 7.
template <int kDim>
struct KeyStep {
  uint4 x[kDim / 32][2];
};
template <int kDim>
struct ValueStep {
  uint4 x[4][kDim / 64];
  __device__ static int RowOf(int j, int t) { return 2 * t + j % 2 + j / 2 * 8; }
};

// Scores of a step: of row g for heads 2t and 2t + 1, then of row g + 8. Keys are the A of the product; q
// holds the queries as two bf16 parts.
template <int kDim, int kTiles>
__device__ void ScoreStep(const KeyStep<kDim>& k, const uint4* q, float (&s)[kTiles][4]) {
  constexpr int kBlocks = kDim / 32;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    float low[4] = {};  // with the low parts: two chains of products side by side
#pragma unroll
    for (int c = 0; c < 4; ++c) s[i][c] = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 x = q[(i * kBlocks + b) * kWarp + lane];
      const uint4 y = q[((kTiles + i) * kBlocks + b) * kWarp + lane];
      MmaBf16(s[i], k.x[b][0].x, k.x[b][1].x, k.x[b][0].y, k.x[b][1].y, x.x, x.y);
      MmaBf16(low, k.x[b][0].x, k.x[b][1].x, k.x[b][0].y, k.x[b][1].y, y.x, y.y);
      MmaBf16(s[i], k.x[b][0].z, k.x[b][1].z, k.x[b][0].w, k.x[b][1].w, x.z, x.w);
      MmaBf16(low, k.x[b][0].z, k.x[b][1].z, k.x[b][0].w, k.x[b][1].w, y.z, y.w);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) s[i][c] += low[c];
  }
}

// Values, transposed, are the A of the second product. Weights are split into two bf16 parts as queries are:
// products keep 16 bits of each. seen0, seen1: rows g and g + 8.
template <int kDim, int kTiles>
__device__ void WeighStep(const ValueStep<kDim>& v, const float (&s)[kTiles][4], bool seen0, bool seen1,
                          float scale, WarpState<kDim, kTiles>& state) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    uint32_t high[2], low[2];  // weights as B fragments: rows 0-7 and 8-15
    float p[4], shrink[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float s0 = seen0 ? s[i][c] : kMinusInfinity, s1 = seen1 ? s[i][2 + c] : kMinusInfinity;
      float top = fmaxf(s0, s1);
#pragma unroll
      for (int step_lane = 4; step_lane < kWarp; step_lane *= 2)
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step_lane));
      const float old = state.max[i][c], now = fmaxf(old, top);
      const float base = now == kMinusInfinity ? 0 : now * scale;
      p[c] = Exp2(s0 * scale - base);
      p[2 + c] = Exp2(s1 * scale - base);
      shrink[c] = Exp2(old * scale - base);
      state.max[i][c] = now;
      state.sum[i][c] = state.sum[i][c] * shrink[c] + (p[c] + p[2 + c]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = PackBf16(p[2 * half], p[2 * half + 1]);
      high[half] = Transpose8x8(pair);
      low[half] = Transpose8x8(PackBf16(p[2 * half] - LowBf16(pair), p[2 * half + 1] - HighBf16(pair)));
    }
#pragma unroll
    for (int tile = 0; tile < kDim / 16; ++tile) {
      float(&o)[4] = state.o[tile][i];
      o[0] *= shrink[0];
      o[1] *= shrink[1];
      o[2] *= shrink[0];
      o[3] *= shrink[1];
      const uint32_t w0 = Word(v.x[0][tile / 4], tile % 4), w1 = Word(v.x[1][tile / 4], tile % 4),
                     w2 = Word(v.x[2][tile / 4], tile % 4), w3 = Word(v.x[3][tile / 4], tile % 4);
      const uint32_t a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632),
                     a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
      MmaBf16(o, a0, a1, a2, a3, high[0], high[1]);
      MmaBf16(o, a0, a1, a2, a3, low[0], low[1]);
    }
  }
}

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

template <int kDim, int kHeads>
using DecodeState =
    std::conditional_t<kHeads == 4, FourHeadState<kDim>, WarpState<kDim, kHeads == 4 ? 1 : kHeads / 8>>;

}  // namespace sluice
