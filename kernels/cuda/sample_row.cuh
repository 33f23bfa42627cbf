// Role: draws a token from one row of logits by a rule, exactly as SampleFrom does on the host. A cluster of
// blocks shares the row, each a slice of it, in its shared memory where that has room. Why weights are
// counted before they are cut: sums of whole numbers are exact in any order. Threads: every thread of the
// cluster calls everything.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/sample_bins.cuh"
#include "kernels/sampling.h"

namespace sluice::sampling {

namespace cg = cooperative_groups;

constexpr int kOwnKeys = 2048, kKeysOfThread = 8;  // of a bin: of one block, of all blocks for each thread
constexpr int kKeyBits = 32;

// A SampleRule in device memory; lists are ranges of those of all rules.
struct Rule {
  double uniform;
  Weight least;  // of a token that may be drawn
  int row, top_k;
  float temperature, top_p, repetition_penalty, presence_penalty, frequency_penalty;
  int seen_begin, seen_end, forbidden_begin, forbidden_end;
};

// Keys of a bin's logits, in any order.
struct KeyList {
  int n;  // more than kOwnKeys: the others are missing
  uint32_t keys[kOwnKeys];
};

struct Extremes {
  uint64_t best;  // key of the largest logit, then the complement of its id; all ones: a bad logit
  float lowest;   // of the logits above -inf
};

// Ids of a warp, and what comes before them.
struct Run {
  int begin, end, ties;
  Weight before;
};

struct Shared {
  Counters own[2];       // of this block, read by the cluster
  Histogram all[2];      // of the cluster: the first one, and the last one of a search
  KeyList lists[2];      // of this block, read by the cluster: of each cut
  Extremes extremes[2];  // of this block, of the cluster
  Weight warp_sums[kThreads / kWarp], weight;
  uint64_t warp_keys[kThreads / kWarp];
  float warp_lowest[kThreads / kWarp];
  int ties;
  Place place;
  Run run;
};

__device__ inline bool IsBad(float logit) { return isnan(logit) || logit == -kMinusInfinity; }
__device__ inline float FloatOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Logits of a block: whole pieces of 16 bytes.
__host__ __device__ inline int SliceOf(int n) { return static_cast<int>(CeilDiv(n, 4 * kBlocks)) * 4; }

class RowSampler {
 public:
  __device__ RowSampler(float* logits, int n, const Rule& rule, Shared& shared)
      : cluster_(cg::this_cluster()), x_(logits), n_(n), rule_(rule), s_(shared) {
    const int slice = SliceOf(n), rank = static_cast<int>(cluster_.block_rank());
    begin_ = min(n, slice * rank);
    end_ = min(n, begin_ + slice);
    slice_ = x_ + begin_;
  }

  __device__ void Adjust(const SeenToken* seen, const int32_t* forbidden) {
    if (rule_.seen_begin == rule_.seen_end && rule_.forbidden_begin == rule_.forbidden_end) return;
    const int first = static_cast<int>(cluster_.block_rank()) * kThreads + static_cast<int>(threadIdx.x);
    for (int i = rule_.seen_begin + first; i < rule_.seen_end; i += kBlocks * kThreads) Penalize(seen[i]);
    cluster_.sync();
    for (int i = rule_.forbidden_begin + first; i < rule_.forbidden_end; i += kBlocks * kThreads)
      if (IsKnown(forbidden[i]) && !IsBad(x_[forbidden[i]])) x_[forbidden[i]] = kMinusInfinity;
    cluster_.sync();
  }

  // From here on this block's logits are read from `held`, which has room for its slice.
  __device__ void Hold(float* held) {
    const int n = end_ - begin_, quads = reinterpret_cast<uintptr_t>(slice_) % 16 == 0 ? n / 4 : 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < quads; i += kThreads)
      reinterpret_cast<float4*>(held)[i] = __ldcg(reinterpret_cast<const float4*>(slice_) + i);
#pragma unroll 8
    for (int i = 4 * quads + static_cast<int>(threadIdx.x); i < n; i += kThreads)
      held[i] = __ldcg(slice_ + i);
    slice_ = held;
    __syncthreads();
  }

  // -1 as SampleFrom.
  __device__ int32_t Best() {
    uint64_t best = 0;
    float lowest = -kMinusInfinity;
#pragma unroll 4
    for (int i = begin_ + static_cast<int>(threadIdx.x); i < end_; i += kThreads) {
      const float logit = At(i);
      if (IsBad(logit)) best = ~uint64_t{0};
      if (IsBad(logit) || logit == kMinusInfinity) continue;
      best = max(best, uint64_t{OrderedKey(logit)} << 32 | ~static_cast<uint32_t>(i));
      lowest = fminf(lowest, logit);
    }
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, lane));
      lowest = fminf(lowest, __shfl_xor_sync(kAllLanes, lowest, lane));
    }
    if (threadIdx.x % kWarp == 0) {
      s_.warp_keys[threadIdx.x / kWarp] = best;
      s_.warp_lowest[threadIdx.x / kWarp] = lowest;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 0; w < kThreads / kWarp; ++w) {
        best = max(best, s_.warp_keys[w]);
        lowest = fminf(lowest, s_.warp_lowest[w]);
      }
      s_.extremes[0] = {best, lowest};
    }
    cluster_.sync();
    if (threadIdx.x == 0) {
      for (int rank = 0; rank < kBlocks; ++rank) {
        const Extremes other = *cluster_.map_shared_rank(&s_.extremes[0], rank);
        best = max(best, other.best);
        lowest = fminf(lowest, other.lowest);
      }
      s_.extremes[1] = {best, lowest};
    }
    __syncthreads();
    best = s_.extremes[1].best;
    if (best == 0 || best == ~uint64_t{0}) return -1;
    largest_ = FloatOf(static_cast<uint32_t>(best >> 32));
    // Weights reach down to -kNoWeight temperatures below the best.
    const float reach = fminf(largest_ - s_.extremes[1].lowest,
                              static_cast<float>(-SampleRule::kNoWeight) * rule_.temperature);
    bins_per_logit_ = reach > 0 ? fminf((kBins - 1) / reach, 1e30f) : 0;
    per_temperature_ = 1 / static_cast<double>(rule_.temperature);
    return static_cast<int32_t>(~static_cast<uint32_t>(best));
  }

  // Writes the token drawn, by the thread that finds it.
  __device__ void Draw(int32_t* out) {
    if (rule_.top_k > 0 || rule_.top_p < 1) {
      Count([this](float logit) { return BinOf(logit); }, &s_.all[0]);
      const Place all = Find(s_.all[0], false, ~Weight{0}, &s_.place);
      Cut cut = {kNoCut, 0, all.weight};
      if (rule_.top_k > 0 && rule_.top_k < all.count) cut = FindCut(false, rule_.top_k);
      if (rule_.top_p < 1) {
        const double wanted = ceil(rule_.top_p * static_cast<double>(cut.weight));
        cut = FindCut(true, max(Weight{1}, static_cast<Weight>(wanted)));
      }
      Take(cut, out);
    } else {
      Take({kNoCut, 0, 0}, out);
    }
  }

  __device__ void Leave() { cluster_.sync(); }  // others may still read this block's shared memory

 private:
  // In are logits with a key above `key`, and the first `ties` of those at it.
  struct Cut {
    uint32_t key;
    int ties;
    Weight weight;  // of what is in
  };
  static constexpr uint32_t kNoCut = 0;  // below the key of every logit

  __device__ float At(int id) const { return slice_[id - begin_]; }  // of this block
  __device__ bool IsKnown(int32_t id) const { return id >= 0 && id < n_; }

  // No multiplication is fused with an addition: the same bits as on the host.
  __device__ void Penalize(const SeenToken& seen) {
    if (!IsKnown(seen.id) || IsBad(x_[seen.id])) return;
    float logit = x_[seen.id];
    if (rule_.repetition_penalty != 1) {
      const double x = logit, penalty = rule_.repetition_penalty;
      constexpr double kMax = 3.40282346638528859812e+38;
      logit = static_cast<float>(fmin(x > 0 ? x / penalty : x * penalty, kMax));
    }
    if (seen.count > 0) {
      const float times = __fmul_rn(rule_.frequency_penalty, static_cast<float>(seen.count));
      logit = __fsub_rn(logit, __fadd_rn(rule_.presence_penalty, times));
    }
    x_[seen.id] = logit;
  }

  __device__ Weight WeightOf(float logit) const {
    const double x = __dmul_rn(static_cast<double>(logit) - largest_, per_temperature_);
    if (x < SampleRule::kNoWeight) return 0;
    const auto weight =
        static_cast<Weight>(exp(x) * static_cast<double>(Weight{1} << SampleRule::kWeightBits));
    return weight < rule_.least ? 0 : weight;
  }

  // From the best on, as wide in logits: few neighbours share one, unlike digits of keys.
  __device__ int BinOf(float logit) const {
    return static_cast<int>(fminf((largest_ - logit) * bins_per_logit_, kBins - 1));
  }

  // What may be drawn, by bin over the whole row. bin_of: < 0 leaves a logit out.
  template <class BinOf>
  __device__ void Count(BinOf bin_of, Histogram* all) {
    // The cluster has read the one of the round before the last: it came to that round's barrier.
    Counters* own = &s_.own[round_++ % 2];
    own->Clear();
    __syncthreads();
#pragma unroll 4
    for (int i = begin_ + static_cast<int>(threadIdx.x); i < end_; i += kThreads) {
      const float logit = At(i);
      if (logit == kMinusInfinity) continue;
      const int bin = bin_of(logit);
      const Weight weight = bin < 0 ? 0 : WeightOf(logit);
      if (weight != 0) own->Add(bin, weight);
    }
    cluster_.sync();
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      Weight weight = 0;
      int count = 0;
      for (int rank = 0; rank < kBlocks; ++rank) {
        const Counters* other = cluster_.map_shared_rank(own, rank);
        weight += other->WeightOf(bin);
        count += other->CountOf(bin);
      }
      all->weights[bin] = weight;
      all->counts[bin] = count;
    }
    __syncthreads();
  }

  // The fewest best tokens whose count or weight is `wanted`, which all have.
  __device__ Cut FindCut(bool by_weight, Weight wanted) {
    const Place first = Find(s_.all[0], by_weight, wanted, &s_.place);
    Search search = {by_weight, wanted - (by_weight ? first.weight : first.count), 0, first.weight};
    uint32_t keys[kKeysOfThread];
    const int n = Collect(first.bin, keys);
    n < 0 ? SearchRow(first.bin, &search) : SearchKeys(keys, n, &search);
    const Weight each = WeightOf(FloatOf(~search.key));
    const Weight ties = by_weight ? (search.left + each - 1) / each : search.left;
    return {~search.key, static_cast<int>(ties), search.weight + ties * each};
  }

  // For a cut's key, counted from the highest, digit by digit.
  struct Search {
    bool by_weight;
    Weight left;  // of what is wanted
    uint32_t key;
    Weight weight;  // of what is better

    __device__ void Narrow(const Place& place, int shift) {
      key |= static_cast<uint32_t>(place.bin) << shift;
      weight += place.weight;
      left -= by_weight ? place.weight : place.count;
    }
  };

  // Keys, counted from the highest, of a bin's logits in the whole row, in every block: `keys` are this
  // thread's, its first one of index threadIdx.x, then every kThreads-th. How many there are, or -1: too
  // many.
  __device__ int Collect(int bin, uint32_t (&keys)[kKeysOfThread]) {
    KeyList* own = &s_.lists[n_lists_++];
    if (threadIdx.x == 0) own->n = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = begin_ + static_cast<int>(threadIdx.x); i < end_; i += kThreads) {
      const float logit = At(i);
      if (logit == kMinusInfinity || BinOf(logit) != bin) continue;
      const int at = atomicAdd(&own->n, 1);
      if (at < kOwnKeys) own->keys[at] = ~OrderedKey(logit);
    }
    cluster_.sync();
    int ends[kBlocks];
    bool complete = true;
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) {
      const int n = cluster_.map_shared_rank(own, rank)->n;
      complete = complete && n <= kOwnKeys;
      ends[rank] = n + (rank > 0 ? ends[rank - 1] : 0);
    }
    const int n = ends[kBlocks - 1];
    if (!complete || n > kKeysOfThread * kThreads) return -1;
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x);
      int of = 0, begin = 0;
#pragma unroll
      for (int rank = 1; rank < kBlocks; ++rank) {
        if (i < ends[rank - 1]) continue;
        of = rank;
        begin = ends[rank - 1];
      }
      keys[j] = i < n ? cluster_.map_shared_rank(own, of)->keys[i - begin] : 0;
    }
    return n;
  }

  // Every block by itself, all the same. Digits begin where keys differ.
  __device__ void SearchKeys(const uint32_t (&keys)[kKeysOfThread], int n, Search* search) {
    Weight weights[kKeysOfThread];
    uint32_t any = 0, every = ~uint32_t{0};
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      const bool is_key = j * kThreads + static_cast<int>(threadIdx.x) < n;
      weights[j] = is_key ? WeightOf(FloatOf(~keys[j])) : 0;
      any |= is_key ? keys[j] : 0;
      every &= is_key ? keys[j] : ~uint32_t{0};
    }
    any = __reduce_or_sync(kAllLanes, any);
    every = __reduce_and_sync(kAllLanes, every);
    if (threadIdx.x % kWarp == 0) s_.warp_keys[threadIdx.x / kWarp] = uint64_t{any} << 32 | every;
    __syncthreads();
    for (int warp = 0; warp < kThreads / kWarp; ++warp) {
      any |= static_cast<uint32_t>(s_.warp_keys[warp] >> 32);
      every &= static_cast<uint32_t>(s_.warp_keys[warp]);
    }
    int bits = kKeyBits - __clz(static_cast<int>(any & ~every));  // of the keys, that differ
    search->key = bits < kKeyBits ? every >> bits << bits : 0;
    while (bits > 0) {
      const int shift = max(0, bits - 8);
      Counters* counters = &s_.own[round_ % 2];
      counters->Clear();
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kKeysOfThread; ++j) {
        const bool in = weights[j] != 0 && (bits == kKeyBits || (keys[j] ^ search->key) >> bits == 0);
        if (in) counters->Add(static_cast<int>((keys[j] ^ search->key) >> shift), weights[j]);
      }
      __syncthreads();
      search->Narrow(Find(*counters, search->by_weight, search->left, &s_.place), shift);
      bits = shift;
    }
  }

  // The same over the logits themselves.
  __device__ void SearchRow(int bin, Search* search) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      Count(
          [&](float logit) {
            const uint32_t key = ~OrderedKey(logit);
            const bool in = BinOf(logit) == bin && (shift == 24 || (key ^ search->key) >> (shift + 8) == 0);
            return in ? static_cast<int>(key >> shift & (kBins - 1)) : -1;
          },
          &s_.all[1]);
      search->Narrow(Find(s_.all[1], search->by_weight, search->left, &s_.place), shift);
    }
  }

  // Of one logit. ties: how many of those at the cut come before it.
  __device__ Weight WeightIn(const Cut& cut, float logit, int ties) const {
    const uint32_t key = OrderedKey(logit);
    if (logit == kMinusInfinity || key < cut.key || (key == cut.key && ties >= cut.ties)) return 0;
    return WeightOf(logit);
  }

  // Successive ids belong to blocks, warps, and at last, where the draw falls into a warp's, to threads.
  __device__ void Take(const Cut& cut, int32_t* out) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int per_warp = static_cast<int>(CeilDiv(end_ - begin_, kThreads)) * kWarp;
    const int begin = min(end_, begin_ + per_warp * warp), end = min(end_, begin + per_warp);
    Weight all;
    int ties = 0;  // before this warp's
    if (cut.key != kNoCut) {
      Weight own = 0;
#pragma unroll 4
      for (int i = begin + lane; i < end; i += kWarp) own += OrderedKey(At(i)) == cut.key;
      ties = static_cast<int>(__shfl_sync(kAllLanes, BlockScan(own, s_.warp_sums, &all), 0));
      if (threadIdx.x == 0) s_.ties = static_cast<int>(all);
      cluster_.sync();
      for (unsigned rank = 0; rank < cluster_.block_rank(); ++rank)
        ties += *cluster_.map_shared_rank(&s_.ties, rank);
    }

    Weight own = 0;
    int tie = ties;
#pragma unroll 4
    for (int base = begin; base < end; base += kWarp) {
      const float logit = base + lane < end ? At(base + lane) : kMinusInfinity;
      const unsigned at_cut = __ballot_sync(kAllLanes, OrderedKey(logit) == cut.key);
      own += WeightIn(cut, logit, tie + __popc(at_cut & ((1u << lane) - 1)));
      tie += __popc(at_cut);
    }
    Weight before = __shfl_sync(kAllLanes, BlockScan(own, s_.warp_sums, &all), 0);  // this warp's
    if (threadIdx.x == 0) s_.weight = all;
    cluster_.sync();
    Weight before_block = 0, total = 0;
    for (unsigned rank = 0; rank < kBlocks; ++rank) {
      const Weight weight = *cluster_.map_shared_rank(&s_.weight, rank);
      if (rank < cluster_.block_rank()) before_block += weight;
      total += weight;
    }
    const auto share = static_cast<Weight>(rule_.uniform * static_cast<double>(total));
    const Weight target = min(share, total - 1);
    if (target < before_block || target >= before_block + all) return;

    before += before_block;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) own += __shfl_xor_sync(kAllLanes, own, step);
    if (lane == 0 && target >= before && target < before + own) s_.run = {begin, end, ties, before};
    __syncthreads();
    const Run run = s_.run;
    const int per = static_cast<int>(CeilDiv(run.end - run.begin, kThreads));
    const int first = min(run.end, run.begin + per * static_cast<int>(threadIdx.x));
    const int last = min(run.end, first + per);
    Weight at_cut = 0;
    for (int i = first; i < last; ++i) at_cut += OrderedKey(At(i)) == cut.key;
    ties = run.ties + static_cast<int>(BlockScan(at_cut, s_.warp_sums, &all));
    own = 0;
    tie = ties;
    for (int i = first; i < last; ++i) {
      own += WeightIn(cut, At(i), tie);
      tie += OrderedKey(At(i)) == cut.key;
    }
    before = run.before + BlockScan(own, s_.warp_sums, &all);
    if (target < before || target >= before + own) return;
    tie = ties;
    for (int i = first; i < last; ++i) {
      before += WeightIn(cut, At(i), tie);
      tie += OrderedKey(At(i)) == cut.key;
      if (before > target) {
        *out = i;
        return;
      }
    }
  }

  const cg::cluster_group cluster_;
  float* const x_;
  const int n_;
  const Rule& rule_;
  Shared& s_;
  int begin_, end_;     // this block's ids
  const float* slice_;  // its logits
  int round_ = 0, n_lists_ = 0;
  float largest_, bins_per_logit_;
  double per_temperature_;
};

}  // namespace sluice::sampling
