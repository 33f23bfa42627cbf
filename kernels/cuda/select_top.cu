#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kBlocks = 8, kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kMostHeld = 50 << 10;  // keys that fit into a block's shared memory

struct Shared {
  alignas(16) int counts[2][256];  // of this block in this round, and in the next
  alignas(16) int total[256];      // of the cluster
  int above[kWarps], ties[kWarps];
  int block_above, block_ties;
};

// The key at the cut after k of the cluster's items, as FindCut: every block counts its own.
template <class Key>
__device__ Cut FindCutTogether(int n, int k, Key key, Shared& s) {
  uint32_t low = 0, high = ~0u;
#pragma unroll 1
  for (int round = 0; low < high; round ^= 1) {
    const int shift = max(0, 24 - __clz(high - low));
    int* counts = s.counts[round];
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += kThreads)
      if (const uint32_t x = key(i); x >= low && x <= high) atomicAdd(&counts[(x - low) >> shift], 1);
    ClusterArrive();
    ClusterWait();
    if (threadIdx.x < 256) {
      int total = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) total += LoadRemote(RemoteAddress(&counts[threadIdx.x], b));
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

// grid (kBlocks, heads), a cluster a head. A block holds the keys of successive rows of its head.
__global__ __cluster_dims__(kBlocks, 1, 1)
    __launch_bounds__(kThreads) void SelectRows(const float* scores, int64_t stride, int n, int k, int tail,
                                                int32_t* rows, int64_t rows_stride, bool held) {
  extern __shared__ uint32_t keys[];
  __shared__ Shared s;
  const int rank = ClusterRank(), warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int each = (n + kBlocks - 1) / kBlocks, begin = min(n, rank * each), own = min(each, n - begin);
  const float* x = scores + blockIdx.y * stride + begin;
  int32_t* to = rows + blockIdx.y * rows_stride;
  if (threadIdx.x < 256) s.counts[0][threadIdx.x] = 0;
  if (held) {
#pragma unroll 8
    for (int i = threadIdx.x; i < own; i += kThreads) keys[i] = OrderedKey(x[i]);
  }
  __syncthreads();
  auto key = [&](int i) { return held ? keys[i] : OrderedKey(x[i]); };
  const Cut cut = k > 0 ? FindCutTogether(own, k, key, s) : Cut{~0u, ~0u, 0};

  // A warp takes successive rows; what earlier warps and blocks take comes before.
  const int share = (own + kThreads - 1) / kThreads * kWarp, first = warp * share;
  const int end = min(own, first + share);
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
  if (lane < rank) {
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
      to[above + __popc(above_lanes & earlier) + min(ties_before, cut.quota)] = begin + i;
    above += __popc(above_lanes);
    ties += __popc(tie_lanes);
  }
  for (int i = rank * kThreads + threadIdx.x; i < tail; i += kBlocks * kThreads) to[k + i] = n + i;
  ClusterWait();
}

}  // namespace

void CudaOps::SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(k >= 0 && k <= n && tail >= 0);
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(rows, DType::kI32, {heads, k + tail}));
  if (k + tail == 0) return;
  Begin();
  const int64_t keys = (n + kBlocks - 1) / kBlocks;
  const bool held = keys <= kMostHeld;
  const int bytes = held ? static_cast<int>(keys * sizeof(uint32_t)) : 0;
  AllowSharedMemory(SelectRows);
  SelectRows<<<dim3(kBlocks, heads), kThreads, bytes, stream_>>>(scores.as<float>(), scores.stride[0],
                                                                 static_cast<int>(n), k, tail,
                                                                 rows.as<int32_t>(), rows.stride[0], held);
  Launched("SelectTop");
}

}  // namespace sluice
