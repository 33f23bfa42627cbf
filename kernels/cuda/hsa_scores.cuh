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
constexpr int kTileHeads = 8;  // query heads of a tensor core product
constexpr int kSlice = 16;     // channels of a product

__host__ __device__ inline int WholeSlices(int channels) { return (channels + kSlice - 1) / kSlice * kSlice; }

// What a query group asks of bounds. All by the block, which must meet between one and the next.
struct Channels {
  float* q;            // [whole tiles of heads, d]; zeros after the group
  float* magnitude;    // [d]: sums over the group of |q|
  int* upper;          // [d]: d where maxima bound the scores, else 0
  int* lines;          // [WholeSlices]: of a chunk, c for minima and d + c for maxima; any after k1
  uint2* fragments;    // of one tile, [slice][part][lane]: q on these lines in the order of products
  float* inverse_tau;  // of one tile, [8]: scores are multiplied by it, times log2 e

  __device__ static int Channel(int line, int d) { return line < d ? line : line - d; }

  // From q in global memory.
  __device__ void Load(const float* from, int group, int d) {
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
      float size = 0, sum = 0;
#pragma unroll 4
      for (int g = 0; g < group; ++g) {
        const float x = from[g * d + c];
        q[g * d + c] = x;
        size += fabsf(x);
        sum += x;
      }
      for (int g = group; g % kTileHeads != 0; ++g) q[g * d + c] = 0;
      magnitude[c] = size;
      upper[c] = sum > 0 ? d : 0;
    }
  }
  // The k1 channels of the largest magnitudes; the lowest wins a tie. `two_sided`: chunks hold minima and
  // maxima. Two neighbours count for a channel.
  __device__ void Choose(int d, int k1, bool two_sided) {
    const int half = threadIdx.x % 2, begin = half * (d / 2);
    const int4* others = reinterpret_cast<const int4*>(magnitude + begin);
    for (int c = threadIdx.x / 2; c < d; c += blockDim.x / 2) {
      const int own = __float_as_int(magnitude[c]);  // not negative: ordered as integers
      // own - v is negative where v is larger; where v comes first, an equal one counts as larger.
      auto larger = [](int least, int v) { return static_cast<int>(static_cast<unsigned>(least - v) >> 31); };
      int ranks[4] = {};
#pragma unroll 4
      for (int i = 0; i < d / 8; ++i) {
        const int4 v = others[i];
        const int least = own - (begin + 4 * i < c);  // right for a whole four but c's own
        ranks[0] += larger(least, v.x);
        ranks[1] += larger(least, v.y);
        ranks[2] += larger(least, v.z);
        ranks[3] += larger(least, v.w);
      }
      int rank = ranks[0] + ranks[1] + ranks[2] + ranks[3];
      if (c / 4 * 4 >= begin && c < begin + d / 2) {
        const int4 v = others[(c - begin) / 4];
        const int of_four[4] = {v.x, v.y, v.z, v.w}, least = own - (c % 4 > 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) rank += larger(own - (j < c % 4), of_four[j]) - larger(least, of_four[j]);
      }
      rank += __shfl_xor_sync(kAllLanes, rank, 1);
      if (half == 0 && rank < k1) lines[rank] = c + (two_sided ? upper[c] : 0);
    }
    if (const int i = k1 + threadIdx.x; i < WholeSlices(k1)) lines[i] = 0;
  }
  // What a tile of 8 heads needs of its queries.
  __device__ void Prepare(int tile, int d, int k1) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, n_warps = blockDim.x / kWarp;
    const int g = lane / 4, t = lane % 4;
    const float* of_tile = q + tile * kTileHeads * d;
#pragma unroll 1
    for (int slice = warp; slice < WholeSlices(k1) / kSlice; slice += n_warps) {
      const int first = slice * kSlice + 4 * t;
      float x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = first + j < k1 ? of_tile[g * d + Channel(lines[first + j], d)] : 0;
      uint32_t low[3], high[3];
      SplitPair(x[0], x[1], low);
      SplitPair(x[2], x[3], high);
#pragma unroll
      for (int p = 0; p < 3; ++p) fragments[(slice * 3 + p) * kWarp + lane] = make_uint2(low[p], high[p]);
    }
#pragma unroll 1
    for (int h = n_warps - 1 - warp; h < kTileHeads; h += n_warps) {
      float all = 0, kept = 0;
#pragma unroll 4
      for (int c = lane; c < d; c += kWarp) all += fabsf(of_tile[h * d + c]);
      for (int i = lane; i < k1; i += kWarp) kept += fabsf(of_tile[h * d + Channel(lines[i], d)]);
      all = WarpSum(all);
      kept = WarpSum(kept);
      if (lane == 0) inverse_tau[h] = kept > 0 ? kLog2E * rsqrtf(static_cast<float>(d) * kept / all) : 0;
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

// Products of a tile of 8 heads with a run of 64 pages, by a warp: in c[m] of lane (g, t) those of page 8g +
// 2m with heads 2t and 2t + 1, then of page 8g + 2m + 1. Products are exact, on tensor cores: pages are the
// M, channels the K. kFlying slices of bounds are on their way to registers at once, the others' to L2;
// meanwhile(): called while the first are, fragments may be ready only after.
template <int kFlying, class Meanwhile>
__device__ void ScoreRun(const Bf16* bounds, const Channels& channels, int tile, int d, int k1,
                         float (&c)[4][4], Meanwhile meanwhile) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int4* fours = reinterpret_cast<const int4*>(channels.lines) + t;
  const int n_slices = (k1 + kSlice - 1) / kSlice;
  bounds += 8 * g;
#pragma unroll 2
  for (int i = kFlying; i < n_slices; ++i) {
    const int4 four = fours[i * 4];
    Prefetch(bounds + four.x * kRunPages);
    Prefetch(bounds + four.y * kRunPages);
    Prefetch(bounds + four.z * kRunPages);
    Prefetch(bounds + four.w * kRunPages);
  }
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[m][i] = 0;
#pragma unroll 1
  for (int first = 0; first < n_slices; first += kFlying) {
    uint4 v[kFlying][4];
#pragma unroll
    for (int i = 0; i < kFlying; ++i) {
      if (first + i >= n_slices) break;
      const int4 four = fours[(first + i) * 4];
      v[i][0] = LoadStream(bounds + four.x * kRunPages);
      v[i][1] = LoadStream(bounds + four.y * kRunPages);
      v[i][2] = LoadStream(bounds + four.z * kRunPages);
      v[i][3] = LoadStream(bounds + four.w * kRunPages);
    }
    if (first == 0) meanwhile();
#pragma unroll
    for (int i = 0; i < kFlying; ++i) {
      if (first + i >= n_slices) break;
      uint2 b[3];
#pragma unroll
      for (int p = 0; p < 3; ++p) b[p] = channels.fragments[((first + i) * 3 + p) * kWarp + lane];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          w[j] = m == 0 ? v[i][j].x : m == 1 ? v[i][j].y : m == 2 ? v[i][j].z : v[i][j].w;
        const uint32_t a0 = __byte_perm(w[0], w[1], 0x5410), a1 = __byte_perm(w[0], w[1], 0x7632),
                       a2 = __byte_perm(w[2], w[3], 0x5410), a3 = __byte_perm(w[2], w[3], 0x7632);
#pragma unroll
        for (int p = 0; p < 3; ++p) MmaBf16(c[m], a0, a1, a2, a3, b[p].x, b[p].y);
      }
    }
  }
}

// The same on ordinary cores.
template <int, class Meanwhile>
__device__ void ScoreRun(const float* bounds, const Channels& channels, int tile, int d, int k1,
                         float (&c)[4][4], Meanwhile meanwhile) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float* q = channels.q + (tile * kTileHeads + 2 * t) * d;
  meanwhile();
  for (int m = 0; m < 4; ++m) {
    for (int i = 0; i < 4; ++i) {
      c[m][i] = 0;
      for (int k = 0; k < k1; ++k) {
        const int line = channels.lines[k];
        c[m][i] +=
            q[i % 2 * d + Channels::Channel(line, d)] * bounds[line * kRunPages + 8 * g + 2 * m + i / 2];
      }
    }
  }
}

}  // namespace sluice
