// Role: the middle of hybrid sparse attention: from scores of pages to the rows chosen by them, by one block
// that has all scores. Threads: the whole block calls together.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hsa_layout.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {

// Largest and sum over a warp's lanes of equal lane % kStep.
template <int kStep>
__device__ float ColumnMax(float x) {
#pragma unroll
  for (int step = kStep; step < kWarp; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
template <int kStep>
__device__ float ColumnSum(float x) {
#pragma unroll
  for (int step = kStep; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// The mean over the group of the softmax over tokens, from scores in base 2.
template <class S>
struct PageWeights {
  PageScores from;
  float top[S::kHeads], share[S::kHeads];

  // By a warp; stats of runs are added up in the same order by every warp of every shape.
  __device__ PageWeights(const PageScores& scores, int n_runs, int group) : from(scores) {
    constexpr int kHeads = S::kHeads, kAtOnce = kWarp / kHeads;
    const int lane = threadIdx.x % kWarp, head = lane % kHeads, first = lane / kHeads;
    const float2* stats = scores.stats + head;
    float most = kMinusInfinity, sum = 0;
#pragma unroll 2
    for (int run = first; run < n_runs; run += kAtOnce) most = fmaxf(most, stats[run * kHeads].x);
    most = ColumnMax<kHeads>(most);
#pragma unroll 2
    for (int run = first; run < n_runs; run += kAtOnce) {
      const float2 x = stats[run * kHeads];
      sum += x.y * Exp2(x.x - most);
    }
    sum = ColumnSum<kHeads>(sum);
    const float own = head < group ? __fdividef(1, sum * group) : 0;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      top[h] = __shfl_sync(kAllLanes, most, h);
      share[h] = __shfl_sync(kAllLanes, own, h);
    }
  }
  // As bits, which order as the weights do.
  __device__ uint32_t Of(int page) const {
    float w = 0;
#pragma unroll
    for (int i = 0; i < S::kHeads / 2; ++i) {
      const float2 x = from.scores[i * from.pages + page];
      w += Exp2(x.x - top[2 * i]) * share[2 * i];
      w += Exp2(x.y - top[2 * i + 1]) * share[2 * i + 1];
    }
    return __float_as_uint(w);
  }
  // No weight is above, but for rounding.
  __device__ uint32_t Most() const {
    float most = 0;
#pragma unroll
    for (int h = 0; h < S::kHeads; ++h) most += share[h];
    return __float_as_uint(most);
  }
};

__device__ inline int WeightBin(uint32_t most, uint32_t weight) {
  const int less = static_cast<int>(most - weight);
  return min(max(less, 0) >> kWeightBinBits, kWeightBins - 1);
}

// Out of line: bins of many pages are rare.
template <class S, class Key>
__device__ __noinline__ Cut FindCutInBin(const Items& items, int k, uint32_t low, uint32_t high, Key key,
                                         SelectShared<S::kThreads>& select) {
  return FindCut<S::kThreads, 1>(items, k, low, high, key, select);
}

// The cut after k rows, from counts of all bins but the last; `key` are weights. By the block, every warp for
// itself but for the candidates.
template <class S, class Key>
__device__ Cut FindWeightCut(const Items& items, int k, uint32_t most, Key key, ChoiceShared& s,
                             SelectShared<S::kThreads>& select) {
  const int lane = threadIdx.x % kWarp;
  const int4 a = *reinterpret_cast<const int4*>(s.counts + 8 * lane);
  const int4 b = *reinterpret_cast<const int4*>(s.counts + 8 * lane + 4);
  int of_bin[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  const int own = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  int before = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  const int rest = ((items.n - 1) * items.unit + items.last) -
                   __shfl_sync(kAllLanes, before, kWarp - 1);  // of the last bin
  if (lane == kWarp - 1) before += rest;
  const int owner = __ffs(__ballot_sync(kAllLanes, before >= k)) - 1;
  before -= own;
  if (lane == kWarp - 1) {
    before -= rest;
    of_bin[7] += rest;
  }
  int bin = 0, left = 0, total = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (before < k) {  // the last one for which this holds is the bin of the cut, in its owner
      bin = 8 * lane + i;
      left = k - before;
      total = of_bin[i];
    }
    before += of_bin[i];
  }
  bin = __shfl_sync(kAllLanes, bin, owner);
  k = __shfl_sync(kAllLanes, left, owner);
  total = __shfl_sync(kAllLanes, total, owner);
  const uint32_t down = static_cast<uint32_t>(bin) << kWeightBinBits, width = 1u << kWeightBinBits;
  const uint32_t high = bin == 0 ? ~0u : most - down;
  const uint32_t low = bin == kWeightBins - 1 || most < down + width ? 0 : most - down - width + 1;
  if (total <= items.unit || total == k) return {low, high, k};  // two pages are larger than one unit
  if (total > (kMostCandidates - 1) * items.unit) return FindCutInBin<S>(items, k, low, high, key, select);

  for (int j = threadIdx.x; j < items.n; j += S::kThreads) {
    const uint32_t weight = key(j);
    if (weight >= low && weight <= high)
      s.candidates[atomicAdd(&s.n_candidates, 1)] = make_uint2(weight, items.Size(j));
  }
  __syncthreads();
  const int n = s.n_candidates;
  const uint32_t weight = lane < n ? s.candidates[lane].x : 0;
  int above = 0, equal = 0;
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const uint2 other = s.candidates[i];
    above += other.x > weight ? other.y : 0;
    equal += other.x == weight ? other.y : 0;
  }
  const unsigned at_cut = __ballot_sync(kAllLanes, lane < n && above < k && above + equal >= k);
  const int source = __ffs(at_cut) - 1;
  const uint32_t cut = __shfl_sync(kAllLanes, weight, source);
  return {cut, cut, k - __shfl_sync(kAllLanes, above, source)};
}

// The rows chosen by (weight, page), ascending -> rows [tokens].
template <class S>
__device__ void ChooseRows(const Unit& unit, const PageScores& scores, int group, int32_t* rows,
                           ChoiceShared& s, SelectShared<S::kThreads>& select) {
  constexpr int kPer = 4;
  const PageWeights<S> weights(scores, unit.n_runs, group);
  const Items items = {unit.n_pages, unit.page, unit.len - (unit.n_pages - 1) * unit.page};
  const uint32_t most = weights.Most();
#pragma unroll 1
  for (int base = 0; base < unit.n_pages; base += kPer * S::kThreads) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int j = base + i * S::kThreads + threadIdx.x;
      if (j >= unit.n_pages) break;
      const uint32_t w = weights.Of(j);
      const int bin = WeightBin(most, w);
      if (bin < kWeightBins - 1) atomicAdd(&s.counts[bin], items.Size(j));  // most pages may be in the last
      scores.weights[j].x = __uint_as_float(w);
    }
  }
  __syncthreads();
  const float2* of_pages = scores.weights;
  auto key = [of_pages](int j) { return __float_as_uint(of_pages[j].x); };
  const Cut cut = FindWeightCut<S>(items, unit.tokens, most, key, s, select);
  auto emit = [&](int j, int taken, int before) {
    const int row = j * unit.page;
#pragma unroll 1
    for (int first = 0; first < taken; first += 4) {
#pragma unroll
      for (int r = first; r < first + 4; ++r)
        if (r < taken) rows[before + r] = row + r;
    }
  };
  EmitInOrder(items, cut, key, emit, select);
}

}  // namespace sluice
