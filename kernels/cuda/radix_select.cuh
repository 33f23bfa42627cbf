// Role: the k best of n weighted items, in ascending order of their index, by one block: a radix search for
// the key at the cut, then an ordered compaction. Equal keys go to the lowest index. Deterministic. Threads:
// a whole block of kSelectThreads calls together.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace sluice {

constexpr int kSelectThreads = 1024;  // as many warps as a warp has lanes
constexpr int kSelectPer = 8;         // items of a thread in one round

struct SelectShared {
  int counts[256];
  int digit, left;
  int above[kSelectThreads / kWarp], ties[kSelectThreads / kWarp];
};

// Unsigned keys in the order of the scores; +0 makes -0 equal 0.
__device__ inline uint32_t OrderedKey(float score) {
  const uint32_t bits = __float_as_uint(score + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The key at which items of total size k, best first, are cut; *left is what items above it leave for those
// equal to it. key(i), size(i) of items [0, n); k > 0 and at most the sum of sizes.
template <class Key, class Size>
__device__ uint32_t KeyAtCut(int n, int k, Key key, Size size, SelectShared& s, int* left) {
  uint32_t prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) s.counts[i] = 0;
    __syncthreads();
    // Neighbours often share a digit: count them together.
    int run_digit = -1, run = 0;
    for (int base = threadIdx.x; base < n; base += kSelectThreads * kSelectPer) {
      uint32_t keys[kSelectPer];
#pragma unroll
      for (int j = 0; j < kSelectPer; ++j)
        if (const int i = base + j * kSelectThreads; i < n) keys[j] = key(i);
#pragma unroll
      for (int j = 0; j < kSelectPer; ++j) {
        const int i = base + j * kSelectThreads, digit = keys[j] >> shift & 255;
        if (i >= n || (keys[j] & mask) != prefix) continue;
        if (digit != run_digit) {
          if (run > 0) atomicAdd(&s.counts[run_digit], run);
          run_digit = digit;
          run = 0;
        }
        run += size(i);
      }
    }
    if (run > 0) atomicAdd(&s.counts[run_digit], run);
    __syncthreads();
    if (threadIdx.x < kWarp) {  // digits from the highest: lane l owns 255 - 8l .. 248 - 8l
      const int top = 255 - 8 * static_cast<int>(threadIdx.x);
      int own = 0;
      for (int i = 0; i < 8; ++i) own += s.counts[top - i];
      int before = own;
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, before, step);
        if (static_cast<int>(threadIdx.x) >= step) before += other;
      }
      before -= own;
      if (before < k && before + own >= k) {
        int i = 0;
        while (before + s.counts[top - i] < k) before += s.counts[top - i++];
        s.digit = top - i;
        s.left = k - before;
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(s.digit) << shift;
    mask |= 255u << shift;
    k = s.left;
    __syncthreads();
  }
  *left = k;
  return prefix;
}

__device__ inline int WarpInclusiveScan(int x) {
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, x, step);
    if (static_cast<int>(threadIdx.x % kWarp) >= step) x += other;
  }
  return x;
}

// emit(i, taken, before) for every item of the selection: `taken` of its size(i), after `before` of all
// earlier items.
template <class Key, class Size, class Emit>
__device__ void SelectInOrder(int n, int k, Key key, Size size, Emit emit, SelectShared& s) {
  int quota;
  const uint32_t cut = KeyAtCut(n, k, key, size, s, &quota);
  const int warp = threadIdx.x / kWarp;
  int above_before = 0, ties_before = 0;
  for (int base = 0; base < n; base += kSelectThreads * kSelectPer) {
    const int first = base + static_cast<int>(threadIdx.x) * kSelectPer;
    uint32_t keys[kSelectPer];
    int above = 0, ties = 0;
#pragma unroll
    for (int j = 0; j < kSelectPer; ++j) {
      keys[j] = first + j < n ? key(first + j) : 0;
      if (first + j < n && keys[j] > cut) above += size(first + j);
      if (first + j < n && keys[j] == cut) ties += size(first + j);
    }
    int above_scan = WarpInclusiveScan(above), tie_scan = WarpInclusiveScan(ties);
    if (threadIdx.x % kWarp == kWarp - 1) {
      s.above[warp] = above_scan;
      s.ties[warp] = tie_scan;
    }
    __syncthreads();
    // Every warp scans the sums of all 32.
    const int lane = threadIdx.x % kWarp, above_of_warp = s.above[lane], ties_of_warp = s.ties[lane];
    const int above_warps = WarpInclusiveScan(above_of_warp), tie_warps = WarpInclusiveScan(ties_of_warp);
    int above_at =
        above_before + above_scan - above + __shfl_sync(kAllLanes, above_warps - above_of_warp, warp);
    int ties_at = ties_before + tie_scan - ties + __shfl_sync(kAllLanes, tie_warps - ties_of_warp, warp);
    above_before += __shfl_sync(kAllLanes, above_warps, kWarp - 1);
    ties_before += __shfl_sync(kAllLanes, tie_warps, kWarp - 1);
#pragma unroll
    for (int j = 0; j < kSelectPer; ++j) {
      if (first + j >= n || keys[j] < cut) continue;
      const int whole = size(first + j), before = above_at + min(ties_at, quota);
      if (keys[j] > cut) {
        emit(first + j, whole, before);
        above_at += whole;
      } else {
        const int taken = min(whole, quota - min(ties_at, quota));
        if (taken > 0) emit(first + j, taken, before);
        ties_at += whole;
      }
    }
    __syncthreads();  // s.above and s.ties have been read
  }
}

}  // namespace sluice
