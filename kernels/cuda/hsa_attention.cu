// Hybrid sparse attention in three kernels: scores of pages, choice of rows, attention over them.
#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

constexpr int kRunPages = PagedKv::kChunkPages;
constexpr int kScoreWarps = 4, kScoreThreads = kScoreWarps * kWarp;
constexpr size_t kSliceBytes = size_t{256} << 20;  // scratch of as many entries as are at work at once

struct HsaArgs {
  PagedCache cache;
  const float* q;  // [batch, heads * group, d]
  int64_t q_stride;
  int group, first_entry;
  float* scores;  // [batch * heads, group, capacity]; the first row of a group becomes page weights
  int64_t capacity;
  int32_t* chosen;  // places [batch * heads, chosen_capacity]
  int32_t* n_chosen;
  int64_t chosen_capacity;
};

// Eight successive values as f32.
__device__ void Load8(const Bf16* p, float (&v)[8]) {
  const uint4 x = *reinterpret_cast<const uint4*>(p);
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = LowBf16(words[i]);
    v[2 * i + 1] = HighBf16(words[i]);
  }
}
__device__ void Load8(const float* p, float (&v)[8]) {
  reinterpret_cast<float4&>(v[0]) = *reinterpret_cast<const float4*>(p);
  reinterpret_cast<float4&>(v[4]) = *reinterpret_cast<const float4*>(p + 4);
}

// For up to 8 heads of a group at once.
__host__ __device__ int64_t ScoreSharedFloats(int group, int d) {
  return int64_t{2} * group * d + 2 * d + group + kScoreWarps * 8 * kRunPages;
}

// What one query group asks of bounds: its k1 channels ascending, as 2 * channel + (1: maxima), their q, and
// what scores are divided by. Written by the whole block.
struct Channels {
  float* query;  // [group, d]
  float* q;      // [group, k1]
  float* magnitude;
  int* lines;
  float* inverse_tau;

  __device__ Channels(float* memory, int group, int d)
      : query(memory),
        q(query + group * d),
        magnitude(q + group * d),
        lines(reinterpret_cast<int*>(magnitude + d)),
        inverse_tau(magnitude + 2 * d) {}

  // The largest sums over the group of |q|; the lowest channel wins a tie.
  __device__ void Choose(const float* from, int group, int d, int k1) {
    __shared__ int chosen_of[kScoreWarps];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int i = threadIdx.x; i < group * d; i += kScoreThreads) query[i] = from[i];
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += kScoreThreads) {
      float sum = 0;
      for (int g = 0; g < group; ++g) sum += fabsf(query[g * d + c]);
      magnitude[c] = sum;
    }
    __syncthreads();
    int before = 0;  // chosen channels below this round's
    for (int first = 0; first < d; first += kScoreThreads) {
      const int c = first + static_cast<int>(threadIdx.x);
      const bool chosen = c < d && Rank(c, d) < k1;
      const unsigned votes = __ballot_sync(kAllLanes, chosen);
      if (lane == 0) chosen_of[warp] = __popc(votes);
      __syncthreads();
      int at = before + __popc(votes & ((1u << lane) - 1));
      for (int w = 0; w < kScoreWarps; ++w) {
        at += w < warp ? chosen_of[w] : 0;
        before += chosen_of[w];
      }
      if (chosen) {
        float sum = 0;
        for (int g = 0; g < group; ++g) {
          sum += query[g * d + c];
          q[g * k1 + at] = query[g * d + c];
        }
        lines[at] = 2 * c + (sum > 0);
      }
      __syncthreads();
    }
    for (int g = warp; g < group; g += kScoreWarps) {
      float all = 0, kept = 0;
      for (int c = lane; c < d; c += kWarp) all += fabsf(query[g * d + c]);
      for (int i = lane; i < k1; i += kWarp) kept += fabsf(q[g * k1 + i]);
      all = WarpSum(all);
      kept = WarpSum(kept);
      if (lane == 0) inverse_tau[g] = kept > 0 ? 1 / sqrtf(static_cast<float>(d) * kept / all) : 0;
    }
    __syncthreads();
  }

 private:
  __device__ int Rank(int c, int d) const {
    const float own = magnitude[c];
    int rank = 0;
#pragma unroll 16
    for (int other = 0; other < d; ++other)
      rank += magnitude[other] > own || (magnitude[other] == own && other < c);
    return rank;
  }
};

// grid (some, heads, batch). A block scores runs of 64 pages for up to kHeads heads of the group at once: a
// lane holds eight pages, and of every 16 channels its warp and its quarter of the warp take one. Writes
// scores over tau.
template <class T, int kHeads>
__global__ __launch_bounds__(kScoreThreads) void ScorePages(const __grid_constant__ HsaArgs a) {
  extern __shared__ float floats[];
  const int head = blockIdx.y, entry = blockIdx.z, slot = a.cache.slots[a.first_entry + entry];
  const int d = a.cache.d, len = a.cache.Length(slot, head);
  const HsaSettings hsa = a.cache.Hsa(slot);
  SLUICE_DEVICE_CHECK(hsa.page >= 1 && hsa.channels >= 1 && hsa.channels <= d && hsa.tokens >= 1 && len > 0);
  const int n_runs = static_cast<int>(CeilDiv(CeilDiv(len, hsa.page), kRunPages));
  SLUICE_DEVICE_CHECK(n_runs * kRunPages <= a.capacity);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (static_cast<int>(blockIdx.x) >= n_runs || min(hsa.tokens, len) == len) return;

  Channels channels(floats, a.group, d);
  float* parts = channels.inverse_tau + a.group;  // [warp][head][page]
  const int k1 = hsa.channels;
  channels.Choose(a.q + (a.first_entry + entry) * a.q_stride + head * a.group * d, a.group, d, k1);
  float* scores = a.scores + (int64_t{entry} * a.cache.heads + head) * a.group * a.capacity;
  for (int run = blockIdx.x; run < n_runs; run += gridDim.x) {
    const T* base[2] = {a.cache.BoundsLine<T>(slot, head, hsa.page, run, 0, false) + lane % 8 * 8,
                        a.cache.BoundsLine<T>(slot, head, hsa.page, run, 0, true) + lane % 8 * 8};
    for (int g0 = 0; g0 < a.group; g0 += kHeads) {
      float sum[kHeads][8] = {};
#pragma unroll 4
      for (int i = warp * 4 + lane / 8; i < k1; i += 4 * kScoreWarps) {
        const int line = channels.lines[i];
        float v[8];
        Load8(base[line % 2] + line / 2 * kRunPages, v);
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
          const float q = g0 + g < a.group ? channels.q[(g0 + g) * k1 + i] : 0;
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[g][j] += q * v[j];
        }
      }
      __syncthreads();  // parts have been read
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          sum[g][j] += __shfl_xor_sync(kAllLanes, sum[g][j], 8);
          sum[g][j] += __shfl_xor_sync(kAllLanes, sum[g][j], 16);
          if (lane < 8) parts[(warp * kHeads + g) * kRunPages + lane * 8 + j] = sum[g][j];
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < kHeads * kRunPages; i += kScoreThreads) {
        const int g = g0 + i / kRunPages;
        if (g >= a.group) continue;
        float score = 0;
#pragma unroll
        for (int w = 0; w < kScoreWarps; ++w) score += parts[w * kHeads * kRunPages + i];
        scores[g * a.capacity + run * kRunPages + i % kRunPages] = score * channels.inverse_tau[g];
      }
    }
  }
}

constexpr int kHeldPages = 8192;  // whose weights shared memory holds
constexpr int kSweepHeads = 8;    // of a group, that one sweep over the scores takes

struct ChooseShared {
  SelectShared select;
  float reduced[kSweepHeads][kWarp];
  float top[kMaxGroup], share[kMaxGroup];  // a weight is the sum over the group of exp(score - top) * share
};

// Combines one value a head over the block; every thread gets all. The order is fixed.
template <class WarpReduce>
__device__ void BlockReduceHeads(float (&x)[kSweepHeads], ChooseShared& s, WarpReduce reduce) {
#pragma unroll
  for (int g = 0; g < kSweepHeads; ++g) x[g] = reduce(x[g]);
  __syncthreads();  // the last use of s.reduced is over
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int g = 0; g < kSweepHeads; ++g) s.reduced[g][threadIdx.x / kWarp] = x[g];
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kSweepHeads; ++g) x[g] = reduce(s.reduced[g][threadIdx.x % kWarp]);
}

// grid (heads, batch). Scores -> page weights, the mean over the group of the softmax over tokens; the first
// `tokens` rows by (weight, page) -> their places, ascending.
__global__ __launch_bounds__(kSelectThreads) void ChooseRows(const __grid_constant__ HsaArgs a) {
  extern __shared__ float held[];
  __shared__ ChooseShared shared;
  const int head = blockIdx.x, entry = blockIdx.y, slot = a.cache.slots[a.first_entry + entry];
  const int len = a.cache.Length(slot, head), unit = entry * a.cache.heads + head;
  const HsaSettings hsa = a.cache.Hsa(slot);
  const int page = hsa.page, n_pages = static_cast<int>(CeilDiv(len, page)), tokens = min(hsa.tokens, len);
  int32_t* places = a.chosen + unit * a.chosen_capacity;
  if (threadIdx.x == 0) a.n_chosen[unit] = tokens;
  if (tokens == len) {
    for (int row = threadIdx.x; row < len; row += kSelectThreads)
      places[row] = a.cache.Place(slot, head, row);
    return;
  }
  float* scores = a.scores + int64_t{unit} * a.group * a.capacity;
  auto size = [=](int j) { return j == n_pages - 1 ? len - j * page : page; };
  for (int g0 = 0; g0 < a.group; g0 += kSweepHeads) {
    const int n_heads = min(kSweepHeads, a.group - g0);
    const float* x = scores + g0 * a.capacity;
    float most[kSweepHeads], sum[kSweepHeads];
#pragma unroll
    for (int g = 0; g < kSweepHeads; ++g) {
      most[g] = kMinusInfinity;
      sum[g] = 0;
    }
    for (int j = threadIdx.x; j < n_pages; j += kSelectThreads) {
#pragma unroll
      for (int g = 0; g < kSweepHeads; ++g)
        if (g < n_heads) most[g] = fmaxf(most[g], x[g * a.capacity + j]);
    }
    BlockReduceHeads(most, shared, WarpMax);
    for (int j = threadIdx.x; j < n_pages; j += kSelectThreads) {
#pragma unroll
      for (int g = 0; g < kSweepHeads; ++g)
        if (g < n_heads) sum[g] += size(j) * expf(x[g * a.capacity + j] - most[g]);
    }
    BlockReduceHeads(sum, shared, WarpSum);
#pragma unroll
    for (int g = 0; g < kSweepHeads; ++g) {
      if (threadIdx.x != 0 || g >= n_heads) continue;
      shared.top[g0 + g] = most[g];
      shared.share[g0 + g] = 1 / (sum[g] * a.group);
    }
  }
  __syncthreads();
  float* weights = n_pages <= kHeldPages ? held : scores;
  for (int j = threadIdx.x; j < n_pages; j += kSelectThreads) {
    float weight = 0;
    for (int g = 0; g < a.group; ++g)
      weight += expf(scores[g * a.capacity + j] - shared.top[g]) * shared.share[g];
    weights[j] = weight;
  }
  __syncthreads();
  SelectInOrder(
      n_pages, tokens, [=](int j) { return OrderedKey(weights[j]); }, size,
      [=](int j, int taken, int before) {
        for (int r = 0; r < taken; ++r) places[before + r] = a.cache.Place(slot, head, j * page + r);
      },
      shared.select);
}

template <class T>
auto ScoreKernel(int group) {
  return group <= 4 ? &ScorePages<T, 4> : &ScorePages<T, 8>;
}

}  // namespace

void CudaOps::HsaAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckDecode(q, cache, out);
  SLUICE_CHECK(!cache.hsa.empty());
  const int batch = static_cast<int>(q.shape[0]), heads = cache.n_kv_heads, d = cache.head_dim;
  const int group = static_cast<int>(q.shape[1]) / heads;
  if (batch == 0) return;
  Begin();
  // Pages and rows that the tables have room for; lengths are known to the GPU only.
  const int64_t rows = cache.page_table.shape[2] * PagedKv::kPageRows;
  const int64_t pages = std::min(rows, cache.chunk_table.shape[2] * 2 * kRunPages);
  const size_t entry_bytes =
      heads * ((group * pages + rows + 16) * 4 + DecodeScratchFloats(1, heads, group, d) / heads * 4);
  const int slice = static_cast<int>(std::clamp<int64_t>(kSliceBytes / entry_bytes, 1, batch));
  char* memory = Reserve(slice * entry_bytes + 256);
  unsigned* counters = Counters(int64_t{slice} * heads);
  if (memory == nullptr || counters == nullptr) return;
  const int64_t units = int64_t{slice} * heads;
  HsaArgs a = {PagedCache(cache), q.as<float>(), q.stride[0], group,   0,
               nullptr,           pages,         nullptr,     nullptr, rows};
  a.scores = reinterpret_cast<float*>(memory);
  a.chosen = reinterpret_cast<int32_t*>(a.scores + units * group * pages);
  a.n_chosen = a.chosen + units * rows;
  float* partials = reinterpret_cast<float*>(a.n_chosen + CeilDiv(units, 64) * 64);
  const size_t score_bytes = ScoreSharedFloats(group, d) * sizeof(float);
  auto score = cache.dtype == DType::kBF16 ? ScoreKernel<Bf16>(group) : ScoreKernel<float>(group);
  Keep(
      cudaFuncSetAttribute(score, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(score_bytes)),
      "HsaAttention");
  const int score_blocks = static_cast<int>(std::min<int64_t>(pages / kRunPages, 64));
  for (a.first_entry = 0; a.first_entry < batch; a.first_entry += slice) {
    const int n = std::min(slice, batch - a.first_entry);
    score<<<dim3(score_blocks, heads, n), kScoreThreads, score_bytes, stream_>>>(a);
    ChooseRows<<<dim3(heads, n), kSelectThreads, kHeldPages * sizeof(float), stream_>>>(a);
    const DecodeArgs attend = {a.cache,       cache.dtype, a.q,        a.q_stride, out.as<float>(),
                               out.stride[0], n,           group,      partials,   counters,
                               a.first_entry, a.chosen,    a.n_chosen, rows};
    DecodeAttention(attend, stream_);
  }
  Launched("HsaAttention");
}

}  // namespace sluice
