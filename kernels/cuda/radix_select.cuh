// Role: the best of n items up to a total size, in ascending order of their index, by one block: a search for
// the key at the cut, 256 parts of the remaining range of keys at a time, then an ordered compaction. Equal
// keys go to the lowest index. Deterministic. Threads: a whole block of kThreads calls together.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace sluice {

template <int kThreads>
struct SelectShared {
  static constexpr int kWarps = kThreads / kWarp;
  alignas(16) int counts[3][256];  // of this round, of the next, and of the last one, to be cleared
  int above[kWarps], ties[kWarps];
};

// Unsigned keys in the order of the scores; +0 makes -0 equal 0.
__device__ inline uint32_t OrderedKey(float score) {
  const uint32_t bits = __float_as_uint(score + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// n items; all but the last are of size `unit`.
struct Items {
  int n, unit, last;
  __device__ int Size(int i) const { return i == n - 1 ? last : unit; }
};

// Items with a key above `high` are in; of those from `low` to `high`, the first `quota` of their total size.
struct Cut {
  uint32_t low, high;
  int quota;
};

// The part of a range that a cut after `k` of all counts falls into, from the highest part down.
struct Part {
  int bin, left, total;  // left: of k in this part; total: what the part counts
};

// By every warp for itself; counts [256], 16-byte aligned, 0 < k <= their sum.
__device__ inline Part FindPart(const int* counts, int k) {
  const int lane = threadIdx.x % kWarp, top = 255 - 8 * lane;  // lane l owns 255 - 8l .. 248 - 8l
  const int4 lower = *reinterpret_cast<const int4*>(counts + top - 7);
  const int4 upper = *reinterpret_cast<const int4*>(counts + top - 3);
  const int of_bin[8] = {upper.w, upper.z, upper.y, upper.x, lower.w, lower.z, lower.y, lower.x};
  int own = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) own += of_bin[i];
  int before = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  const int owner = __ffs(__ballot_sync(kAllLanes, before >= k)) - 1;
  before -= own;
  Part part = {0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (before < k) part = {top - i, k - before, of_bin[i]};  // the last one for which this holds
    before += of_bin[i];
  }
  return {__shfl_sync(kAllLanes, part.bin, owner), __shfl_sync(kAllLanes, part.left, owner),
          __shfl_sync(kAllLanes, part.total, owner)};
}

// Cuts items with keys in [low, high] after a total size of k, best first; 0 < k <= the sum of sizes. The
// range ends with one key, with one item, or with all its items in. A thread has kPer keys on their way at
// once.
template <int kThreads, int kPer, class Key>
__device__ Cut FindCut(const Items& items, int k, uint32_t low, uint32_t high, Key key,
                       SelectShared<kThreads>& s) {
  for (int i = threadIdx.x; i < 2 * 256; i += kThreads) s.counts[i / 256][i % 256] = 0;
  __syncthreads();
#pragma unroll 1
  for (int round = 0; low < high; round = (round + 1) % 3) {
    const int shift = max(0, 24 - __clz(high - low));
    int* counts = s.counts[round];
#pragma unroll 1
    for (int base = threadIdx.x; base < items.n; base += kThreads * kPer) {
      uint32_t keys[kPer];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int i = base + j * kThreads;
        keys[j] = i < items.n ? key(i) : 0;
      }
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int i = base + j * kThreads;
        if (i < items.n && keys[j] >= low && keys[j] <= high)
          atomicAdd(&counts[(keys[j] - low) >> shift], items.Size(i));
      }
    }
    for (int i = threadIdx.x; i < 256; i += kThreads) s.counts[(round + 2) % 3][i] = 0;
    __syncthreads();
    const Part part = FindPart(counts, k);
    low += static_cast<uint32_t>(part.bin) << shift;
    high = min(high, low + ((1u << shift) - 1));
    k = part.left;
    if (part.total <= items.unit || part.total == k) break;  // two items are larger than one unit
  }
  return {low, high, k};
}

// emit(i, taken, before) for every item that the cut leaves in: `taken` of its size, after `before` of all
// earlier items. A warp takes successive items, 32 at a time, and reads each key twice.
template <int kThreads, class Key, class Emit>
__device__ void EmitInOrder(const Items& items, const Cut& cut, Key key, Emit emit,
                            SelectShared<kThreads>& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int each = (items.n + kThreads - 1) / kThreads * kWarp, first = warp * each;
  const int end = min(items.n, first + each);
  int above = 0, ties = 0;  // items
#pragma unroll 4
  for (int i = first + lane; i < end; i += kWarp) {
    const uint32_t k = key(i);
    above += k > cut.high;
    ties += k >= cut.low && k <= cut.high;
  }
  above = __reduce_add_sync(kAllLanes, above);
  ties = __reduce_add_sync(kAllLanes, ties);
  if (lane == 0) {
    s.above[warp] = above;
    s.ties[warp] = ties;
  }
  __syncthreads();
  int above_at = __reduce_add_sync(kAllLanes, lane < warp ? s.above[lane] : 0);
  int ties_at = __reduce_add_sync(kAllLanes, lane < warp ? s.ties[lane] : 0);
#pragma unroll 1
  for (int base = first; base < end; base += kWarp) {
    const int i = base + lane;
    const uint32_t k = i < end ? key(i) : 0;
    const bool is_above = i < end && k > cut.high, is_tie = i < end && k >= cut.low && k <= cut.high;
    const unsigned above_lanes = __ballot_sync(kAllLanes, is_above);
    const unsigned tie_lanes = __ballot_sync(kAllLanes, is_tie), earlier = (1u << lane) - 1;
    if (is_above || is_tie) {
      const int skipped = min(items.unit * (ties_at + __popc(tie_lanes & earlier)), cut.quota);
      const int whole = items.Size(i), taken = is_tie ? min(whole, cut.quota - skipped) : whole;
      if (taken > 0) emit(i, taken, items.unit * (above_at + __popc(above_lanes & earlier)) + skipped);
    }
    above_at += __popc(above_lanes);
    ties_at += __popc(tie_lanes);
  }
}

}  // namespace sluice
