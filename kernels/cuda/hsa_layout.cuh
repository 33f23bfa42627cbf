// Role: how hybrid sparse attention divides a (sequence, KV head) over warps and blocks, and where it keeps
// what it is at work on: shared memory of a block, and global memory of a cluster for what that cannot hold.
// Threads: computed by all, alike.
#pragma once

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/decode_out.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hsa_attend.cuh"
#include "kernels/cuda/hsa_scores.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/radix_select.cuh"

namespace sluice {

// A result is merged from this many parts: part p attends to steps p, p + 16, ... of the chosen rows. Sums
// over pages are made of those of each run of 64. So neither depends on how many warps there are.
constexpr int kHsaParts = 16;

// kHeads: room for query heads of a group, 4, 8 or 16. A cluster of kBlocks blocks of kWarps warps takes one
// (sequence, KV head); a multiprocessor holds kPerSm blocks.
template <int kDim_, int kHeads_, int kBlocks_, int kWarps_, int kPerSm_, int kHeldPages_>
struct HsaShape {
  static constexpr int kDim = kDim_, kHeads = kHeads_, kBlocks = kBlocks_, kWarps = kWarps_, kPerSm = kPerSm_,
                       kHeldPages = kHeldPages_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kDims = kDim / kBlocks;          // of the result, written by a block
  static constexpr int kFlying = kBlocks >= 4 ? 4 : 2;  // slices of bounds on their way to a warp
  static constexpr int kHeldRows = 2048;                // chosen ones
};

struct HsaArgs {
  PagedCache cache;
  const float* q;  // [batch, heads * group, d]
  int64_t q_stride;
  DecodeOut out;
  int group, n_units;         // n_units: (sequence, KV head)
  int n_pieces = 0;           // of scratch: one for each cluster, or fewer
  char* scratch = nullptr;    // of each piece, Scratch::Words
  unsigned* taken = nullptr;  // of each piece that blocks share: 1 while one has it
};

// The room in the tables: lengths are known to the GPU only.
struct Room {
  int64_t pages, rows;
  __host__ __device__ explicit Room(const PagedCache& cache)
      : pages(int64_t{2} * kRunPages * cache.max_chunks),
        rows(int64_t{PagedKv::kPageRows} * cache.max_pages) {
    if (rows < pages) pages = rows;
    pages = CeilDiv(pages, kRunPages) * kRunPages;
    rows = CeilDiv(rows, kRunPages) * kRunPages;
  }
};

// Of pages of a (sequence, KV head): of heads 2i, 2i + 1 the scores lie at scores[i * pages + page]; maxima
// and sums of run r and head h at stats[r * heads + h]; a page's weight at weights[page].x.
struct PageScores {
  float2 *scores, *stats, *weights;
  int64_t pages;
};

// One (sequence, KV head).
struct Unit {
  int len, page, channels, tokens, n_pages, n_runs;
  __device__ int PageSize(int j) const { return j == n_pages - 1 ? len - j * page : page; }
};

// A piece of scratch, for what the blocks of a cluster cannot hold: scores, stats and weights, then the
// chosen rows of each block.
struct Scratch {
  PageScores scores;
  int32_t* rows;
  __host__ __device__ static int64_t ScoreWords(const Room& room, int heads) {
    return room.pages * heads + room.pages / kRunPages * heads * 2 + room.pages * 2;
  }
  __host__ __device__ static int64_t Words(const Room& room, int heads, int blocks) {
    return ScoreWords(room, heads) + blocks * room.rows;
  }
  __device__ Scratch(const HsaArgs& a, int heads, int blocks, int piece, int rank) {
    const Room room(a.cache);
    float* memory = reinterpret_cast<float*>(a.scratch) + piece * Words(room, heads, blocks);
    scores.scores = reinterpret_cast<float2*>(memory);
    scores.stats = scores.scores + room.pages * (heads / 2);
    scores.weights = scores.stats + room.pages / kRunPages * heads;
    scores.pages = room.pages;
    rows = reinterpret_cast<int32_t*>(memory + ScoreWords(room, heads)) + rank * room.rows;
  }
};

// Weights are counted in bins of a sixteenth of an octave, down from the largest possible one; the last bin
// has all smaller ones too.
constexpr int kWeightBins = 256, kWeightBinBits = 19, kMostCandidates = kWarp;

struct ChoiceShared {
  alignas(16) int counts[kWeightBins];           // rows of a bin's pages
  alignas(8) uint2 candidates[kMostCandidates];  // (weight, rows) of the pages in the bin of the cut
  int n_candidates;

  // Before the first use; the block meets after it.
  __device__ void Clear() {
    for (int i = threadIdx.x; i < kWeightBins; i += blockDim.x) counts[i] = 0;
    if (threadIdx.x == 0) n_candidates = 0;
  }
};

template <class S>
struct HsaShared {
  static constexpr int kHeldRuns = S::kHeldPages / kRunPages, kTable = 256;
  static constexpr int kPartFloats = kHsaParts * S::kHeads * S::kDims;
  static constexpr int kScoreFloats = S::kHeldPages * S::kHeads;

  alignas(16) float scores[kScoreFloats > kPartFloats ? kScoreFloats : kPartFloats];
  // Other blocks may send parts while this one still looks at scores.
  alignas(16) float sent_parts[S::kBlocks > 1 ? kPartFloats : 4];
  uint4 query_fragments[HsaQueryFragments<S::kDim, S::kHeads>];
  uint4 channel_fragments[HsaChannelFragments<S::kDim, S::kHeads>];
  alignas(16) float q[S::kHeads * S::kDim];
  alignas(16) float magnitude[S::kDim];
  alignas(16) int lines[S::kDim];
  int upper[S::kDim];
  alignas(16) float2 stats[kHeldRuns * S::kHeads];
  alignas(16) float2 part_stats[kHsaParts * S::kHeads];  // (max, sum)
  alignas(16) float inverse_tau[S::kHeads];
  int32_t page_ids[kTable], chunk_ids[kTable / 4];  // the first ones of the tables
  int32_t rows[S::kHeldRows];
  ChoiceShared choice;
  SelectShared<S::kThreads> select;

  __device__ float* parts() {  // [part][head][dims]
    if constexpr (S::kBlocks > 1) return sent_parts;
    return scores;
  }
};

// What all blocks of a cluster do together; one block is its own cluster.
template <int kBlocks>
struct Cluster {
  __device__ static int Rank() {
    if constexpr (kBlocks > 1) return ClusterRank();
    return 0;
  }
  __device__ static void Arrive() {
    if constexpr (kBlocks > 1) ClusterArrive();
  }
  __device__ static void Wait() {
    if constexpr (kBlocks > 1) ClusterWait();
  }
  __device__ static void Meet() {
    if constexpr (kBlocks > 1) {
      ClusterArrive();
      ClusterWait();
    } else {
      __syncthreads();
    }
  }
  // x -> what block `rank` has at `to`.
  __device__ static void Send(float* to, int rank, float4 x) {
    if constexpr (kBlocks > 1) {
      StoreRemote(RemoteAddress(to, rank), x);
    } else {
      *reinterpret_cast<float4*>(to) = x;
    }
  }
  __device__ static void SendAll(float* to, float4 x) {
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) Send(to, rank, x);
  }
};

}  // namespace sluice
