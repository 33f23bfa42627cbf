#include <cooperative_groups.h>

#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/sampling.h"
#include "kernels/views.h"

namespace sluice {
namespace {

namespace cg = cooperative_groups;

using Weight = unsigned long long;

constexpr int kBlocks = 8;  // a cluster, which shares the row of one rule
constexpr int kThreads = 512;
constexpr int kBins = 256;

// A SampleRule in device memory; lists are ranges of those of all rules.
struct Rule {
  double uniform;
  Weight least;  // of a token that may be drawn
  int row, top_k;
  float temperature, top_p, repetition_penalty, presence_penalty, frequency_penalty;
  int seen_begin, seen_end, forbidden_begin, forbidden_end;
};

// Counts and weights by bin.
struct Histogram {
  Weight weights[kBins];
  int counts[kBins];
};

struct Extremes {
  uint64_t best;  // key of the largest logit, then the complement of its id; all ones: a bad logit
  float lowest;   // of the logits above -inf
};

struct Place {
  int bin, count;  // of all bins before it
  Weight weight;
};

// Ids of a warp, and what comes before them.
struct Run {
  int begin, end, ties;
  Weight before;
};

struct Shared {
  Histogram own[2];      // of this block, read by the cluster
  Histogram all[2];      // of the cluster: the first one, and the last one of a search
  Extremes extremes[2];  // of this block, of the cluster
  Weight warp_sums[kThreads / kWarp], weight;
  uint64_t warp_keys[kThreads / kWarp];
  float warp_lowest[kThreads / kWarp];
  int ties;
  Place place;
  Run run;
};

__device__ bool IsBad(float logit) { return isnan(logit) || logit == -kMinusInfinity; }
__device__ float FloatOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Exclusive over the block's threads, in their order; `total` is that of all.
__device__ Weight BlockScan(Weight x, Weight* warp_sums, Weight* total) {
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

// One row. Every thread of the cluster calls everything.
class RowSampler {
 public:
  __device__ RowSampler(float* logits, int n, const Rule& rule, Shared& shared)
      : cluster_(cg::this_cluster()), x_(logits), n_(n), rule_(rule), s_(shared) {
    const int slice = static_cast<int>(CeilDiv(n, kBlocks)), rank = static_cast<int>(cluster_.block_rank());
    begin_ = min(n, slice * rank);
    end_ = min(n, begin_ + slice);
  }

  __device__ void Adjust(const SeenToken* seen, const int32_t* forbidden) {
    const int first = static_cast<int>(cluster_.block_rank()) * kThreads + static_cast<int>(threadIdx.x);
    for (int i = rule_.seen_begin + first; i < rule_.seen_end; i += kBlocks * kThreads) Penalize(seen[i]);
    cluster_.sync();
    for (int i = rule_.forbidden_begin + first; i < rule_.forbidden_end; i += kBlocks * kThreads)
      if (IsKnown(forbidden[i]) && !IsBad(x_[forbidden[i]])) x_[forbidden[i]] = kMinusInfinity;
    cluster_.sync();
  }

  // -1 as SampleFrom.
  __device__ int32_t Best() {
    uint64_t best = 0;
    float lowest = -kMinusInfinity;
#pragma unroll 4
    for (int i = begin_ + static_cast<int>(threadIdx.x); i < end_; i += kThreads) {
      const float logit = x_[i];
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
      const Place all = Find(s_.all[0], false, ~Weight{0});
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
    Histogram* own = &s_.own[round_++ % 2];
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      own->weights[bin] = 0;
      own->counts[bin] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = begin_ + static_cast<int>(threadIdx.x); i < end_; i += kThreads) {
      const float logit = x_[i];
      if (logit == kMinusInfinity) continue;
      const int bin = bin_of(logit);
      const Weight weight = bin < 0 ? 0 : WeightOf(logit);
      if (weight == 0) continue;
      atomicAdd(&own->weights[bin], weight);
      atomicAdd(&own->counts[bin], 1);
    }
    cluster_.sync();
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      Weight weight = 0;
      int count = 0;
      for (int rank = 0; rank < kBlocks; ++rank) {
        const Histogram* other = cluster_.map_shared_rank(own, rank);
        weight += other->weights[bin];
        count += other->counts[bin];
      }
      all->weights[bin] = weight;
      all->counts[bin] = count;
    }
    __syncthreads();
  }

  // The first bin with which the sum of weights or counts reaches `wanted`, or the end.
  __device__ Place Find(const Histogram& all, bool by_weight, Weight wanted) {
    constexpr int kOwn = kBins / kWarp;
    const int lane = threadIdx.x;
    if (lane < kWarp) {
      Weight weight = 0;
      int count = 0;
      for (int i = 0; i < kOwn; ++i) {
        weight += all.weights[lane * kOwn + i];
        count += all.counts[lane * kOwn + i];
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
          const Weight with = by_weight ? at.weight + all.weights[at.bin]
                                        : static_cast<Weight>(at.count) + all.counts[at.bin];
          if (with >= wanted) break;
          at.weight += all.weights[at.bin];
          at.count += all.counts[at.bin];
        }
        s_.place = at;
      } else if (owner < 0 && lane == kWarp - 1) {
        s_.place = {kBins, end.count, end.weight};
      }
    }
    __syncthreads();
    const Place place = s_.place;
    __syncthreads();
    return place;
  }

  // The fewest best tokens whose count or weight is `wanted`, which all have.
  __device__ Cut FindCut(bool by_weight, Weight wanted) {
    const Place first = Find(s_.all[0], by_weight, wanted);
    Weight weight = first.weight, left = wanted - (by_weight ? first.weight : first.count);
    uint32_t from = 0;  // the cut's key, counted from the highest
    for (int shift = 24; shift >= 0; shift -= 8) {
      Count(
          [&](float logit) {
            const uint32_t key = ~OrderedKey(logit);
            const bool in = BinOf(logit) == first.bin && (shift == 24 || (key ^ from) >> (shift + 8) == 0);
            return in ? static_cast<int>(key >> shift & (kBins - 1)) : -1;
          },
          &s_.all[1]);
      const Place place = Find(s_.all[1], by_weight, left);
      from |= static_cast<uint32_t>(place.bin) << shift;
      weight += place.weight;
      left -= by_weight ? place.weight : place.count;
    }
    const Weight each = WeightOf(FloatOf(~from));
    const Weight ties = by_weight ? (left + each - 1) / each : left;
    return {~from, static_cast<int>(ties), weight + ties * each};
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
      for (int i = begin + lane; i < end; i += kWarp) own += OrderedKey(x_[i]) == cut.key;
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
      const float logit = base + lane < end ? x_[base + lane] : kMinusInfinity;
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
    for (int i = first; i < last; ++i) at_cut += OrderedKey(x_[i]) == cut.key;
    ties = run.ties + static_cast<int>(BlockScan(at_cut, s_.warp_sums, &all));
    own = 0;
    tie = ties;
    for (int i = first; i < last; ++i) {
      own += WeightIn(cut, x_[i], tie);
      tie += OrderedKey(x_[i]) == cut.key;
    }
    before = run.before + BlockScan(own, s_.warp_sums, &all);
    if (target < before || target >= before + own) return;
    tie = ties;
    for (int i = first; i < last; ++i) {
      before += WeightIn(cut, x_[i], tie);
      tie += OrderedKey(x_[i]) == cut.key;
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
  int begin_, end_;  // this block's ids
  int round_ = 0;
  float largest_, bins_per_logit_;
  double per_temperature_;
};

// grid (kBlocks, rules).
__global__ __cluster_dims__(kBlocks, 1, 1)
    __launch_bounds__(kThreads) void SampleRows(float* logits, int64_t stride, int n, const Rule* rules,
                                                const SeenToken* seen, const int32_t* forbidden,
                                                int32_t* out) {
  __shared__ Shared shared;
  const Rule rule = rules[blockIdx.y];
  RowSampler row(logits + rule.row * stride, n, rule, shared);
  row.Adjust(seen, forbidden);
  const int32_t best = row.Best();
  if (best >= 0 && rule.temperature > 0) {
    row.Draw(&out[rule.row]);
  } else if (blockIdx.x == 0 && threadIdx.x == 0) {
    out[rule.row] = best;
  }
  row.Leave();
}

}  // namespace

void CudaOps::Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) {
  const int64_t rows = logits.shape[0], n = logits.shape[1];
  SLUICE_CHECK(Is(logits, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}));
  if (rules.empty()) return;
  std::vector<Rule> own;
  std::vector<SeenToken> seen;
  std::vector<int32_t> forbidden;
  for (const SampleRule& rule : rules) {
    SLUICE_CHECK(rule.row >= 0 && rule.row < rows);
    Rule r = {};
    r.uniform = rule.uniform;
    r.least = LeastWeight(rule);
    r.row = rule.row;
    r.top_k = rule.top_k;
    r.temperature = rule.temperature;
    r.top_p = rule.top_p;
    r.repetition_penalty = rule.repetition_penalty;
    r.presence_penalty = rule.presence_penalty;
    r.frequency_penalty = rule.frequency_penalty;
    r.seen_begin = static_cast<int>(seen.size());
    r.forbidden_begin = static_cast<int>(forbidden.size());
    seen.insert(seen.end(), rule.seen.begin(), rule.seen.end());
    forbidden.insert(forbidden.end(), rule.forbidden.begin(), rule.forbidden.end());
    r.seen_end = static_cast<int>(seen.size());
    r.forbidden_end = static_cast<int>(forbidden.size());
    own.push_back(r);
  }
  Begin();
  const size_t rule_bytes = own.size() * sizeof(Rule), seen_bytes = seen.size() * sizeof(SeenToken),
               forbidden_bytes = forbidden.size() * sizeof(int32_t);
  char* memory = Reserve(rule_bytes + seen_bytes + forbidden_bytes);
  if (memory == nullptr) return;
  char* const device_seen = memory + rule_bytes;
  char* const device_forbidden = device_seen + seen_bytes;
  Keep(queue_->ring.CopyIn(own.data(), memory, rule_bytes, stream_), "Sample");
  Keep(queue_->ring.CopyIn(seen.data(), device_seen, seen_bytes, stream_), "Sample");
  Keep(queue_->ring.CopyIn(forbidden.data(), device_forbidden, forbidden_bytes, stream_), "Sample");
  SampleRows<<<dim3(kBlocks, static_cast<unsigned>(rules.size())), kThreads, 0, stream_>>>(
      logits.as<float>(), logits.stride[0], static_cast<int>(n), reinterpret_cast<const Rule*>(memory),
      reinterpret_cast<const SeenToken*>(device_seen), reinterpret_cast<const int32_t*>(device_forbidden),
      out.as<int32_t>());
  Launched("Sample");
}

}  // namespace sluice
