// Role: how the weights of logits are counted by bin, and where in such counts a share of them ends. Why
// apart from the sampler: nothing here knows a row. Threads: every thread of a block calls everything.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/sampling.h"

namespace sluice::sampling {

using Weight = unsigned long long;

constexpr int kBlocks = 8;  // a cluster, which shares the row of one rule
constexpr int kThreads = 512;
constexpr int kBins = 256;

// Counts and weights by bin, as they are added up: there is no fast addition of 64 bits in shared memory.
struct Counters {
  static constexpr int kPartBits = 14, kParts = 3;
  static_assert(kPartBits * kParts > SampleRule::kWeightBits);
  unsigned parts[kParts][kBins];
  int counts[kBins];

  // By all threads of the block, who must meet afterwards.
  __device__ void Clear() {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      for (auto& part : parts) part[bin] = 0;
      counts[bin] = 0;
    }
  }
  __device__ void Add(int bin, Weight weight) {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (const auto part = static_cast<unsigned>(weight >> (i * kPartBits)) & ((1u << kPartBits) - 1);
          part != 0)
        atomicAdd(&parts[i][bin], part);
    atomicAdd(&counts[bin], 1);
  }
  __device__ Weight WeightOf(int bin) const {
    return parts[0][bin] + (Weight{parts[1][bin]} << kPartBits) + (Weight{parts[2][bin]} << (2 * kPartBits));
  }
  __device__ int CountOf(int bin) const { return counts[bin]; }
};
constexpr int64_t kMostLogits = int64_t{kBlocks} << (32 - Counters::kPartBits);

// The same of a whole row.
struct Histogram {
  Weight weights[kBins];
  int counts[kBins];
  __device__ Weight WeightOf(int bin) const { return weights[bin]; }
  __device__ int CountOf(int bin) const { return counts[bin]; }
};

struct Place {
  int bin, count;  // of all bins before it
  Weight weight;
};

// Exclusive over the block's threads, in their order; `total` is that of all.
__device__ inline Weight BlockScan(Weight x, Weight* warp_sums, Weight* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Weight sum = x;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Weight other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the last use of warp_sums is over
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  Weight before = 0;
  *total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_sums[w];
    *total += warp_sums[w];
  }
  return before + sum - x;
}

// The first bin with which the sum of weights or counts reaches `wanted`, or the end. found: of the block.
template <class Bins>
__device__ Place Find(const Bins& all, bool by_weight, Weight wanted, Place* found) {
  constexpr int kOwn = kBins / kWarp;
  const int lane = threadIdx.x;
  if (lane < kWarp) {
    Weight weight = 0;
    int count = 0;
    for (int i = 0; i < kOwn; ++i) {
      weight += all.WeightOf(lane * kOwn + i);
      count += all.CountOf(lane * kOwn + i);
    }
    Place end = {0, count, weight};  // of this lane's bins
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const Weight other_weight = __shfl_up_sync(kAllLanes, end.weight, step);
      const int other_count = __shfl_up_sync(kAllLanes, end.count, step);
      if (lane >= step) {
        end.weight += other_weight;
        end.count += other_count;
      }
    }
    const bool reached = (by_weight ? end.weight : static_cast<Weight>(end.count)) >= wanted;
    const int owner = __ffs(__ballot_sync(kAllLanes, reached)) - 1;  // -1: none
    if (lane == owner) {
      Place at = {lane * kOwn, end.count - count, end.weight - weight};
      for (;; ++at.bin) {
        const Weight with = by_weight ? at.weight + all.WeightOf(at.bin)
                                      : static_cast<Weight>(at.count) + all.CountOf(at.bin);
        if (with >= wanted) break;
        at.weight += all.WeightOf(at.bin);
        at.count += all.CountOf(at.bin);
      }
      *found = at;
    } else if (owner < 0 && lane == kWarp - 1) {
      *found = {kBins, end.count, end.weight};
    }
  }
  __syncthreads();
  const Place place = *found;
  __syncthreads();
  return place;
}

}  // namespace sluice::sampling
