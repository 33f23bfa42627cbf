// Role: where hybrid sparse attention keeps what it is at work on: shared memory of a block, and global
// memory of a cluster for what that cannot hold. Threads: computed by all, alike.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/hsa_scores.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/radix_select.cuh"

namespace sluice {

// Of a cluster of kBlocks, each warp takes every n-th run of pages and every n-th step of chosen rows: on
// tensor cores it has 32 warps whatever kBlocks is, and the result does not depend on it. kDim 0: ordinary
// cores.
constexpr int kClusterWarps = 32;
template <int kDim, int kBlocks>
constexpr int kHsaWarps = kDim == 0 ? kPlainThreads / kWarp : kClusterWarps / kBlocks;  // of a block
template <int kDim, int kBlocks>
constexpr int kParts = kDim == 0 ? kBlocks : kClusterWarps;  // of a result: of a block, or of a warp

// What shared memory holds; what is longer lies in global memory.
constexpr int kHeldPages = 4096;  // of one (sequence, KV head)
constexpr int kHeldRows = 1024;   // chosen ones of a block
constexpr int kRunScores = kRunPages * kTileHeads;

struct HsaArgs {
  PagedCache cache;
  const float* q;  // [batch, heads * group, d]
  int64_t q_stride;
  float* out;  // as q
  int64_t out_stride;
  int group, n_units;  // n_units: (sequence, KV head)
  char* scratch;       // of each cluster, Scratch::Words
};

// The room in the tables: lengths are known to the GPU only.
struct Room {
  int64_t pages, rows;
  __host__ __device__ explicit Room(const PagedCache& cache)
      : pages(int64_t{2} * kRunPages * cache.max_chunks),
        rows(int64_t{PagedKv::kPageRows} * cache.max_pages) {
    if (rows < pages) pages = rows;
  }
  // A block's share.
  __host__ __device__ int64_t own_runs(int blocks) const { return CeilDiv(pages, blocks * kRunPages); }
  __host__ __device__ int64_t own_rows(int blocks) const { return CeilDiv(rows, blocks * kStep) * kStep; }
};

__host__ __device__ inline int Tiles(int group) { return (group + kTileHeads - 1) / kTileHeads; }

// Memory of a cluster for what its blocks cannot hold: weights, then scores and chosen rows of each block.
struct Scratch {
  uint32_t* weights;
  float* scores;
  int32_t* places;
  __host__ __device__ static int64_t Words(const Room& room, int group, int blocks) {
    return blocks * (room.own_runs(blocks) * (kRunPages + Tiles(group) * kRunScores) + room.own_rows(blocks));
  }
  __device__ Scratch(const HsaArgs& a, int blocks, int cluster, int rank) {
    const Room room(a.cache);
    const int64_t own_scores = room.own_runs(blocks) * Tiles(a.group) * kRunScores;
    weights = reinterpret_cast<uint32_t*>(a.scratch) + cluster * Words(room, a.group, blocks);
    scores = reinterpret_cast<float*>(weights + blocks * room.own_runs(blocks) * kRunPages);
    places = reinterpret_cast<int32_t*>(scores + blocks * own_scores) + rank * room.own_rows(blocks);
    scores += rank * own_scores;
  }
};

// Of kDim > 0 all places are constants: registers are scarce.
template <int kDim, int kTiles, int kBlocks>
struct HsaShared {
  static constexpr int kHeads = kTileHeads * kTiles;
  static constexpr int kThreads = kHsaWarps<kDim, kBlocks> * kWarp;
  uint4 fragments[kQueryFragments<kDim, kTiles>];
  uint2 channel_fragments[kDim / kSlice * 3 * kWarp];
  union {
    float scores[kHeldPages / kBlocks * kTiles * kTileHeads];  // [run][tile][quarter][lane][4]
    float parts[kClusterWarps * kHeads * kDim / kBlocks];      // [part][head][dims], later
  };
  alignas(16) float q[kHeads * kDim];
  alignas(16) float magnitude[kDim];
  alignas(16) int lines[kDim];
  int upper[kDim];
  alignas(16) float2 stats[kClusterWarps * kHeads];  // [warp of the cluster][head]: (max, sum over tokens)
  alignas(16) float2 part_stats[kClusterWarps * kHeads];  // [part][head]: (max, sum)
  float part_weights[kClusterWarps * kHeads];
  alignas(16) float inverse_tau[kTileHeads];
  uint2 ranges[kClusterWarps];  // of weights
  alignas(16) uint32_t weights[kHeldPages];
  int32_t page_ids[kThreads],
      chunk_ids[kThreads];  // the first ones of the tables
  int32_t places[kHeldRows];
  SelectShared<kThreads> select[1];

  static size_t Bytes(int, int) { return sizeof(HsaShared); }
  __device__ static HsaShared& At(char* memory, int, int) { return *reinterpret_cast<HsaShared*>(memory); }
};
template <int kTiles, int kBlocks>
struct HsaShared<0, kTiles, kBlocks> {
  char* end;
  float *scores, *parts, *plain, *q, *magnitude, *inverse_tau, *part_weights;
  int *lines, *upper;
  float2 *stats, *part_stats;
  uint2 *channel_fragments, *ranges;
  uint32_t* weights;
  int32_t *page_ids, *chunk_ids, *places;
  SelectShared<kPlainThreads>* select;

  __host__ __device__ HsaShared(char* memory, int group, int d) : end(memory) {
    const int heads = Tiles(group) * kTileHeads;
    scores = Take<float>(kHeldPages / kBlocks * heads);
    parts = Take<float>(group * d);
    plain = Take<float>(PlainSharedFloats(group, d));
    q = Take<float>(heads * d);
    magnitude = Take<float>(d);
    inverse_tau = Take<float>(kTileHeads);
    channel_fragments = Take<uint2>(WholeSlices(d) / kSlice * 3 * kWarp);
    part_weights = Take<float>(kBlocks * heads);
    lines = Take<int>(d);
    upper = Take<int>(d);
    stats = Take<float2>(kClusterWarps * heads);
    part_stats = Take<float2>(kBlocks * heads);
    ranges = Take<uint2>(kClusterWarps);
    weights = Take<uint32_t>(kHeldPages);
    page_ids = Take<int32_t>(kPlainThreads);
    chunk_ids = Take<int32_t>(kPlainThreads);
    places = Take<int32_t>(kHeldRows);
    select = Take<SelectShared<kPlainThreads>>(1);
  }
  static size_t Bytes(int group, int d) {
    return HsaShared(nullptr, group, d).end - static_cast<char*>(nullptr);
  }
  __device__ static HsaShared At(char* memory, int group, int d) { return HsaShared(memory, group, d); }

 private:
  template <class X>
  __host__ __device__ X* Take(int n) {
    X* to = reinterpret_cast<X*>(end);
    end += (n * sizeof(X) + 15) / 16 * 16;
    return to;
  }
};

}  // namespace sluice
