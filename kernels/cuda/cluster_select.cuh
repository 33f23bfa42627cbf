// Role: the best of many items by a cluster of eight blocks: each holds the keys of successive ones, and
// their counts meet through shared memory. The search is that of radix_select.cuh. Equal keys go to the
// lowest index. Deterministic. Threads: all threads of all blocks of the cluster call together.
#pragma once

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/radix_select.cuh"

namespace sluice {

constexpr int kSelectBlocks = 8, kSelectThreads = 1024, kSelectWarps = kSelectThreads / kWarp;
constexpr int kMostHeldKeys = 50 << 10;  // keys that fit into a block's shared memory

struct ClusterSelectShared {
  alignas(16) int counts[2][256];  // of this block in this round, and in the next
  alignas(16) int total[256];      // of the cluster
  int above[kSelectWarps], ties[kSelectWarps];
  int block_above, block_ties;

  // Before the first use; the block meets after it.
  __device__ void Clear() {
    if (threadIdx.x < 256) counts[0][threadIdx.x] = 0;
  }
};

// This block's items of n.
struct ClusterShare {
  int begin, own;
  __device__ explicit ClusterShare(int n) {
    const int each = (n + kSelectBlocks - 1) / kSelectBlocks;
    begin = min(n, ClusterRank() * each);
    own = min(each, n - begin);
  }
};

// The key at the cut after k of the cluster's items, as FindCut: every block counts its own n.
template <class Key>
__device__ Cut FindCutTogether(int n, int k, Key key, ClusterSelectShared& s) {
  uint32_t low = 0, high = ~0u;
#pragma unroll 1
  for (int round = 0; low < high; round ^= 1) {
    const int shift = max(0, 24 - __clz(high - low));
    int* counts = s.counts[round];
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += kSelectThreads)
      if (const uint32_t x = key(i); x >= low && x <= high) atomicAdd(&counts[(x - low) >> shift], 1);
    ClusterArrive();
    ClusterWait();
    if (threadIdx.x < 256) {
      int total = 0;
#pragma unroll
      for (int b = 0; b < kSelectBlocks; ++b) total += LoadRemote(RemoteAddress(&counts[threadIdx.x], b));
      s.total[threadIdx.x] = total;
      s.counts[round ^ 1][threadIdx.x] = 0;  // all have read it
    }
    __syncthreads();
    const Part part = FindPart(s.total, k);
    low += static_cast<uint32_t>(part.bin) << shift;
    high = min(high, low + ((1u << shift) - 1));
    k = part.left;
    if (part.total == k) break;  // also: a single item
  }
  return {low, high, k};
}

// emit(i, at) for every item i of this block's n that the cut leaves in; `at` counts those of the whole
// cluster, in order. A warp takes successive items; what earlier warps and blocks take comes before.
template <class Key, class Emit>
__device__ void EmitTogether(int n, const Cut& cut, Key key, Emit emit, ClusterSelectShared& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int share = (n + kSelectThreads - 1) / kSelectThreads * kWarp, first = warp * share;
  const int end = min(n, first + share);
  int above = 0, ties = 0;
#pragma unroll 4
  for (int i = first + lane; i < end; i += kWarp) {
    const uint32_t y = key(i);
    above += y > cut.high;
    ties += y >= cut.low && y <= cut.high;
  }
  above = __reduce_add_sync(kAllLanes, above);
  ties = __reduce_add_sync(kAllLanes, ties);
  if (lane == 0) {
    s.above[warp] = above;
    s.ties[warp] = ties;
  }
  __syncthreads();
  const int above_of_warp = s.above[lane], ties_of_warp = s.ties[lane];
  if (warp == 0) {
    const int block_above = __reduce_add_sync(kAllLanes, above_of_warp);
    const int block_ties = __reduce_add_sync(kAllLanes, ties_of_warp);
    if (lane == 0) {
      s.block_above = block_above;
      s.block_ties = block_ties;
    }
  }
  ClusterArrive();
  ClusterWait();
  above = lane < warp ? above_of_warp : 0;
  ties = lane < warp ? ties_of_warp : 0;
  if (lane < ClusterRank()) {
    above += LoadRemote(RemoteAddress(&s.block_above, lane));
    ties += LoadRemote(RemoteAddress(&s.block_ties, lane));
  }
  ClusterArrive();  // nobody leaves while it is read
  above = __reduce_add_sync(kAllLanes, above);
  ties = __reduce_add_sync(kAllLanes, ties);
#pragma unroll 1
  for (int base = first; base < end; base += kWarp) {
    const int i = base + lane;
    const uint32_t y = i < end ? key(i) : 0;
    const bool is_above = i < end && y > cut.high, is_tie = i < end && y >= cut.low && y <= cut.high;
    const unsigned above_lanes = __ballot_sync(kAllLanes, is_above);
    const unsigned tie_lanes = __ballot_sync(kAllLanes, is_tie), earlier = (1u << lane) - 1;
    const int ties_before = ties + __popc(tie_lanes & earlier);
    if (is_above || (is_tie && ties_before < cut.quota))
      emit(i, above + __popc(above_lanes & earlier) + min(ties_before, cut.quota));
    above += __popc(above_lanes);
    ties += __popc(tie_lanes);
  }
  ClusterWait();
}

}  // namespace sluice
