// Role: the first half of hybrid sparse attention: which channels a query group looks at, and the scores of a
// run of 64 pages on them, by one warp. Threads: a whole block, or a whole warp, as each function says.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

constexpr int kRunPages = PagedKv::kChunkPages;
constexpr int kSlice = 16;  // channels of a product

__host__ __device__ inline int WholeSlices(int channels) { return (channels + kSlice - 1) / kSlice * kSlice; }

// A product has 8 columns. Up to 4 heads take two each: 16 bytes a lane and slice hold three parts of f32
// queries as two products. Of 8 heads and a tile of 8 of 16 heads, three products of 8 bytes.
template <int kDim, int kHeads>
constexpr int HsaChannelFragments = kDim / kSlice* kWarp*(kHeads == 4 ? 2 : kHeads / 8 * 3) / 2;

// What a query group asks of bounds. All by the block, which must meet between one and the next.
template <int kDim, int kHeads, int kThreads>
struct Channels {
  float* q;            // [kHeads, kDim]; zeros after the group
  float* magnitude;    // [kDim]: sums over the group of |q|
  int* upper;          // [kDim]: kDim where maxima bound the scores, else 0
  int* lines;          // [WholeSlices]: of a chunk, c for minima and d + c for maxima; any after k1
  uint4* fragments;    // q on these lines in the order of products
  float* inverse_tau;  // [kHeads]: scores are multiplied by it, times log2 e

  __device__ static int Channel(int line) { return line % kDim; }

  // From q in global memory.
  __device__ void Load(const float* from, int group) {
#pragma unroll
    for (int i = 0; i < (kDim + kThreads - 1) / kThreads; ++i) {
      const int c = threadIdx.x + i * kThreads;
      if (kDim % kThreads != 0 && c >= kDim) break;
      float x[kHeads], size = 0, sum = 0;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) x[g] = g < group ? from[g * kDim + c] : 0;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        q[g * kDim + c] = x[g];
        size += fabsf(x[g]);
        sum += x[g];
      }
      magnitude[c] = size;
      upper[c] = sum > 0 ? kDim : 0;
    }
  }
  // The k1 channels of the largest magnitudes; the lowest wins a tie. `two_sided`: chunks hold minima and
  // maxima. kPer neighbours count for a channel.
  __device__ void Choose(int k1, bool two_sided) {
    constexpr int kPer = kThreads >= 4 * kDim ? 4 : kThreads >= 2 * kDim ? 2 : 1, kEach = kDim / kPer;
    const int part = threadIdx.x % kPer, begin = part * kEach;
    const int4* others = reinterpret_cast<const int4*>(magnitude + begin);
    for (int c = threadIdx.x / kPer; c < kDim; c += kThreads / kPer) {
      const int own = __float_as_int(magnitude[c]);  // not negative: ordered as integers
      // own - v is negative where v is larger; where v comes first, an equal one counts as larger.
      auto larger = [](int least, int v) { return static_cast<int>(static_cast<unsigned>(least - v) >> 31); };
      int ranks[4] = {};
#pragma unroll 8
      for (int i = 0; i < kEach / 4; ++i) {
        const int4 v = others[i];
        const int least = own - (begin + 4 * i < c);  // right for a whole four but c's own
        ranks[0] += larger(least, v.x);
        ranks[1] += larger(least, v.y);
        ranks[2] += larger(least, v.z);
        ranks[3] += larger(least, v.w);
      }
      int rank = ranks[0] + ranks[1] + ranks[2] + ranks[3];
      if (c >= begin && c < begin + kEach) {
        const int4 v = others[(c - begin) / 4];
        const int of_four[4] = {v.x, v.y, v.z, v.w}, least = own - (c % 4 > 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) rank += larger(own - (j < c % 4), of_four[j]) - larger(least, of_four[j]);
      }
#pragma unroll
      for (int step = 1; step < kPer; step *= 2) rank += __shfl_xor_sync(kAllLanes, rank, step);
      if (part == 0 && rank < k1) lines[rank] = c + (two_sided ? upper[c] : 0);
    }
    if (const int i = k1 + threadIdx.x; i < WholeSlices(k1)) lines[i] = 0;
  }
  // Fragments and temperatures.
  __device__ void Prepare(int k1) {
    constexpr int kWarps = kThreads / kWarp;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int n_slices = WholeSlices(k1) / kSlice;
#pragma unroll 1
    for (int slice = warp; slice < n_slices; slice += kWarps) {
      const int first = slice * kSlice + 4 * t;
      const int4 four = reinterpret_cast<const int4*>(lines)[slice * 4 + t];
      const int channels[4] = {Channel(four.x), Channel(four.y), Channel(four.z), Channel(four.w)};
      constexpr int kTiles = kHeads == 4 ? 1 : kHeads / 8;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float* of_head = q + (kHeads == 4 ? g % 4 : tile * 8 + g) * kDim;
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = first + j < k1 ? of_head[channels[j]] : 0;
        uint32_t low[3], high[3];
        SplitPair(x[0], x[1], low);
        SplitPair(x[2], x[3], high);
        if constexpr (kHeads == 4) {  // columns 0-3: the first parts, then the last; 4-7: the second, then 0
          fragments[slice * kWarp + lane] =
              g < 4 ? make_uint4(low[0], high[0], low[2], high[2]) : make_uint4(low[1], high[1], 0, 0);
        } else {
          uint2* to = reinterpret_cast<uint2*>(fragments) + (slice * kTiles + tile) * 3 * kWarp + lane;
#pragma unroll
          for (int p = 0; p < 3; ++p) to[p * kWarp] = make_uint2(low[p], high[p]);
        }
      }
    }
#pragma unroll 1
    for (int h = kWarps - 1 - warp; h < kHeads; h += kWarps) {
      float all = 0, kept = 0;
#pragma unroll
      for (int c = lane; c < kDim; c += kWarp) all += fabsf(q[h * kDim + c]);
      for (int i = lane; i < k1; i += kWarp) kept += fabsf(q[h * kDim + Channel(lines[i])]);
      all = WarpSum(all);
      kept = WarpSum(kept);
      if (lane == 0) inverse_tau[h] = kept > 0 ? kLog2E * rsqrtf(__fdividef(kDim * kept, all)) : 0;
    }
  }

 private:
  // f32 as three bf16 parts: exact.
  __device__ static void SplitPair(float a, float b, uint32_t (&parts)[3]) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      parts[i] = PackBf16(a, b);
      a -= LowBf16(parts[i]);
      b -= HighBf16(parts[i]);
    }
  }
};

// Values of a run's lines lie at RunBounds + line * 64. chunk_ids: of this (slot, head).
template <class T>
__device__ const T* RunBounds(const PagedCache& cache, const int32_t* chunk_ids, int page, int run) {
  const int chunk = page == 1 ? run / 2 : run, half = page == 1 ? run % 2 : 0;
  return static_cast<const T*>(cache.chunks) + (chunk_ids[chunk] * int64_t{2} + half) * cache.d * kRunPages;
}

// Of a run, kSlices slices of bounds on their way to a warp's registers.
template <int kSlices>
struct RunSlices {
  uint4 x[kSlices][4];

  __device__ void Load(const Bf16* bounds, const int* lines, int first, int n_slices) {
    const int lane = threadIdx.x % kWarp;
    const int4* fours = reinterpret_cast<const int4*>(lines) + lane % 4;
    bounds += lane / 4 * 8;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (first + i >= n_slices) break;
      const int4 four = fours[(first + i) * 4];
      x[i][0] = LoadStream(bounds + four.x * kRunPages);
      x[i][1] = LoadStream(bounds + four.y * kRunPages);
      x[i][2] = LoadStream(bounds + four.z * kRunPages);
      x[i][3] = LoadStream(bounds + four.w * kRunPages);
    }
  }
};

template <int kHeads>
constexpr int kHsaTiles = kHeads == 4 ? 1 : kHeads / 8;

// Adds products of kHeads heads with slices of a run of 64 pages, by a warp, on tensor cores, exact: pages
// are the M, channels the K. In c[tile][m] of lane (g, t) those of page 8g + 2m with columns 2t and 2t + 1,
// then of page 8g + 2m + 1.
template <int kHeads, int kSlices>
__device__ void ScoreSlices(const RunSlices<kSlices>& v, const uint4* fragments, int first, int n_slices,
                            float (&c)[kHsaTiles<kHeads>][4][4]) {
  constexpr int kTiles = kHsaTiles<kHeads>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (first + i >= n_slices) break;
    uint2 b[kTiles * 3];
    if constexpr (kHeads == 4) {
      const uint4 x = fragments[(first + i) * kWarp + lane];
      b[0] = make_uint2(x.x, x.y);
      b[1] = make_uint2(x.z, x.w);
    } else {
      const uint2* of_slice = reinterpret_cast<const uint2*>(fragments) + (first + i) * kTiles * 3 * kWarp;
#pragma unroll
      for (int p = 0; p < kTiles * 3; ++p) b[p] = of_slice[p * kWarp + lane];
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t w0 = Word(v.x[i][0], m), w1 = Word(v.x[i][1], m), w2 = Word(v.x[i][2], m),
                     w3 = Word(v.x[i][3], m);
      const uint32_t a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632),
                     a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
      if constexpr (kHeads == 4) {
        MmaBf16(c[0][m], a0, a1, a2, a3, b[0].x, b[0].y);
        MmaBf16(c[0][m], a0, a1, a2, a3, b[1].x, b[1].y);
      } else {
#pragma unroll
        for (int p = 0; p < kTiles * 3; ++p) MmaBf16(c[p / 3][m], a0, a1, a2, a3, b[p].x, b[p].y);
      }
    }
  }
}

}  // namespace sluice
