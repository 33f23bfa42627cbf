#include "kernels/cuda/chosen_attention.cuh"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/hsa_attend.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/limits.h"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

// One choice of rows: a group's, or one query head's.
struct ChosenUnit {
  int entry, slot, head;
  int first, n_heads;  // query heads of the group
  int len;
  HsaSettings settings;

  // Of block (choice of all heads, entry).
  __device__ explicit ChosenUnit(const ChosenArgs& a)
      : entry(blockIdx.y),
        slot(a.cache.slots[entry]),
        head(blockIdx.x / a.choices()),
        first(blockIdx.x % a.choices()),
        n_heads(a.of_a_head() ? 1 : a.group),
        len(a.cache.Length(slot, head)),
        settings(a.cache.Hsa(slot)) {
    SLUICE_DEVICE_CHECK(settings.tokens >= 1 && len > 0 && len <= a.room);
    SLUICE_DEVICE_CHECK(a.method != ChosenMethod::kSparqWithMean || settings.sums != 0);
  }
  __device__ const float* Query(const ChosenArgs& a) const {
    return a.q + entry * a.q_stride + (head * a.group + first) * a.cache.d;
  }
  __device__ int32_t* Rows(const ChosenArgs& a) const {
    return a.rows + (int64_t{entry} * gridDim.x + blockIdx.x) * a.room;
  }
};

template <int kThreads>
struct ChooseShared {
  SelectShared<kThreads> select;
  float reduced[kThreads / kWarp];
  float top[kMaxGroup], share[kMaxGroup];  // of each head
  int missing;                             // rows of the last page
};

// Of n scores in base 2 the largest, and the sum of 2^(score - largest).
template <int kThreads>
__device__ float2 SoftmaxStats(const float* scores, int n, float* reduced) {
  float top = kMinusInfinity, sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float x = scores[i];
    if (x > top) {
      sum *= Exp2(top - x);
      top = x;
    }
    sum += Exp2(x - top);
  }
  const float of_all = BlockMax(top, reduced);
  return make_float2(of_all, BlockSum(top == kMinusInfinity ? 0 : sum * Exp2(top - of_all), reduced));
}

// The mean over the group of the softmax over scores -> the first plane, as bits ordered as the weights are.
template <int kThreads>
__device__ const float* WeighRows(const ChosenArgs& a, const ChosenUnit& u, ChooseShared<kThreads>& s) {
  for (int g = 0; g < a.group; ++g) {
    const float2 stats = SoftmaxStats<kThreads>(a.Scores(u.entry, u.head, g), u.len, s.reduced);
    if (threadIdx.x == 0) {
      s.top[g] = stats.x;
      s.share[g] = 1 / (stats.y * a.group);
    }
  }
  __syncthreads();
  float* scores = a.Scores(u.entry, u.head, 0);
  for (int i = threadIdx.x; i < u.len; i += kThreads) {
    float weight = 0;
    for (int g = 0; g < a.group; ++g) weight += Exp2(scores[g * a.room + i] - s.top[g]) * s.share[g];
    scores[i] = weight;
  }
  __syncthreads();
  return scores;
}

// Ascending; returns how many. By the block, which must meet before it reads the rows.
template <int kThreads>
__device__ int ChooseRows(const ChosenArgs& a, const ChosenUnit& u, int32_t* rows,
                          ChooseShared<kThreads>& s) {
  constexpr int kPer = 8;
  if (a.method == ChosenMethod::kQuest) {
    const float* scores = a.Scores(u.entry, u.head, u.first);
    const int page = u.settings.page, n_pages = (u.len + page - 1) / page;
    const int n = min(max(1, u.settings.tokens / page), n_pages);
    const Items items = {n_pages, 1, 1};
    auto key = [scores](int j) { return OrderedKey(scores[j]); };
    if (threadIdx.x == 0) s.missing = 0;
    const Cut cut = FindCut<kThreads, kPer>(items, n, 0, ~0u, key, s.select);  // meets
    auto emit = [&](int j, int, int before) {
      const int begin = j * page, size = min(page, u.len - begin);
      for (int r = 0; r < size; ++r) rows[before * page + r] = begin + r;
      if (size < page) s.missing = page - size;
    };
    EmitInOrder(items, cut, key, emit, s.select);
    __syncthreads();
    return n * page - s.missing;
  }
  const int n = min(u.settings.tokens, u.len);
  if (n == u.len) {
    for (int i = threadIdx.x; i < n; i += kThreads) rows[i] = i;
    return n;
  }
  const Items items = {u.len, 1, 1};
  auto emit = [rows](int i, int, int before) { rows[before] = i; };
  auto choose = [&](uint32_t most, auto key) {
    const Cut cut = FindCut<kThreads, kPer>(items, n, 0, most, key, s.select);
    EmitInOrder(items, cut, key, emit, s.select);
  };
  if (a.is_sparq()) {
    const float* scores = a.Scores(u.entry, u.head, a.group);
    const int latest = u.len - n / 4 - 1;
    choose(~0u, [=](int i) { return i >= latest ? ~0u : OrderedKey(scores[i]); });
  } else if (a.method == ChosenMethod::kTopK) {
    const float* scores = a.Scores(u.entry, u.head, u.first);
    choose(~0u, [=](int i) { return OrderedKey(scores[i]); });
  } else {
    const float* weights = WeighRows<kThreads>(a, u, s);
    choose(__float_as_uint(2.f), [=](int i) { return __float_as_uint(weights[i]); });
  }
  return n;
}

// Of each head the part of the softmax over all scores that the n chosen rows have -> s.share; 1 where no
// mean is wanted. The rows are written; the block must meet before it reads the shares.
template <int kThreads>
__device__ void FindShares(const ChosenArgs& a, const ChosenUnit& u, const int32_t* rows, int n,
                           ChooseShared<kThreads>& s) {
  const bool all = a.method != ChosenMethod::kSparqWithMean || n == u.len;
  for (int g = 0; g < u.n_heads; ++g) {
    float share = 1;
    if (!all) {
      const float* scores = a.Scores(u.entry, u.head, g);
      const float2 stats = SoftmaxStats<kThreads>(scores, u.len, s.reduced);
      float sum = 0;
      for (int i = threadIdx.x; i < n; i += kThreads) sum += Exp2(scores[rows[i]] - stats.x);
      share = BlockSum(sum, s.reduced) / stats.y;
    }
    if (threadIdx.x == 0) s.share[g] = share;
  }
}

// y: value c of the attention of the unit's head g over the chosen rows.
__device__ void StoreChosen(const ChosenArgs& a, const ChosenUnit& u, int g, int c, float y, float share) {
  if (share != 1) y = share * y + (1 - share) / u.len * a.cache.ValueSums(u.slot, u.head)[c];
  const int64_t at = u.entry * a.out_stride + (u.head * a.group + u.first + g) * a.cache.d + c;
  if (a.out_bf16) {
    static_cast<Bf16*>(a.out)[at] = FromFloat<Bf16>(y);
  } else {
    static_cast<float*>(a.out)[at] = y;
  }
}

template <int kDim, int kTiles>
struct AttendShared {
  static constexpr int kHeads = 8 * kTiles, kWarps = 16 / kTiles, kThreads = kWarps * kWarp;
  uint4 q[kQueryFragments<kDim, kTiles>];
  float o[kWarps][kHeads][kDim];
  float max[kWarps][kHeads], sum[kWarps][kHeads];
  ChooseShared<kThreads> choose;
};

// grid (heads * choices, batch). A block chooses, then each warp attends to its steps of 16 rows; warps are
// merged in order.
template <int kDim, int kTiles>
__global__ __launch_bounds__(AttendShared<kDim, kTiles>::kThreads) void AttendBest(
    const __grid_constant__ ChosenArgs a) {
  extern __shared__ __align__(16) char memory[];
  using Shared = AttendShared<kDim, kTiles>;
  auto& s = *reinterpret_cast<Shared*>(memory);
  constexpr int kThreads = Shared::kThreads, kWarps = Shared::kWarps;
  const ChosenUnit u(a);
  int32_t* rows = u.Rows(a);
  SplitQueries<kDim, kTiles>(u.Query(a), u.n_heads, s.q);
  const int n = ChooseRows<kThreads>(a, u, rows, s.choose);
  __syncthreads();
  FindShares<kThreads>(a, u, rows, n, s.choose);

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  WarpState<kDim, kTiles> state;
  AttendSteps<kDim, 8 * kTiles, kWarps>(a.cache, a.cache.page_table.At(u.slot, u.head), rows, n, warp, s.q,
                                        scale, state);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 8 * i + 2 * t + c;
      float sum = state.sum[i][c];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (g == 0) {
        s.max[warp][head] = state.max[i][c] * scale;
        s.sum[warp][head] = sum;
      }
#pragma unroll
      for (int tile = 0; tile < kDim / 16; ++tile)
        *reinterpret_cast<float2*>(&s.o[warp][head][state.DimOf(tile, g)]) =
            make_float2(state.o[tile][i][c], state.o[tile][i][2 + c]);
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < u.n_heads * kDim; at += kThreads) {
    const int head = at / kDim, dim = at % kDim;
    float top = kMinusInfinity, y = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, s.max[w][head]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = Exp2(s.max[w][head] - top);
      y += s.o[w][head][dim] * weight;
      sum += s.sum[w][head] * weight;
    }
    StoreChosen(a, u, head, dim, y / sum, s.choose.share[head]);
  }
}

// The same on ordinary cores.
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendBestPlain(const __grid_constant__ ChosenArgs a) {
  extern __shared__ float floats[];
  __shared__ ChooseShared<kPlainThreads> choose;
  const ChosenUnit u(a);
  const int d = a.cache.d;
  int32_t* rows = u.Rows(a);
  const int n = ChooseRows<kPlainThreads>(a, u, rows, choose);
  __syncthreads();
  FindShares<kPlainThreads>(a, u, rows, n, choose);
  const PlainShared shared(floats, u.n_heads, d);
  for (int i = threadIdx.x; i < u.n_heads * d; i += kPlainThreads) shared.q[i] = u.Query(a)[i];
  __syncthreads();
  auto row = [&](int i) {
    const int place = a.cache.Place(u.slot, u.head, rows[i]);
    return KvRow<T>{a.cache.K<T>(place), a.cache.V<T>(place)};
  };
  AttendPlain<T>(shared, u.n_heads, d, n, row, shared.q, [](int, float) {});  // its queries are read by then
  __syncthreads();
  for (int i = threadIdx.x; i < u.n_heads * d; i += kPlainThreads)
    StoreChosen(a, u, i / d, i % d, shared.q[i], choose.share[i / d]);
}

template <class Kernel>
cudaError_t Start(Kernel kernel, int threads, size_t bytes, const ChosenArgs& a, cudaStream_t stream) {
  const cudaError_t error = AllowSharedMemory(kernel);
  if (error == cudaSuccess) kernel<<<dim3(a.cache.heads * a.choices(), a.batch), threads, bytes, stream>>>(a);
  return error;
}
template <int kDim, int kTiles>
cudaError_t StartBest(const ChosenArgs& a, cudaStream_t stream) {
  using Shared = AttendShared<kDim, kTiles>;
  return Start(AttendBest<kDim, kTiles>, Shared::kThreads, sizeof(Shared), a, stream);
}
template <class T>
cudaError_t StartPlain(const ChosenArgs& a, cudaStream_t stream) {
  const int n_heads = a.of_a_head() ? 1 : a.group;
  return Start(AttendBestPlain<T>, kPlainThreads, PlainSharedFloats(n_heads, a.cache.d) * sizeof(float), a,
               stream);
}

cudaError_t QueueAttention(const ChosenArgs& a, cudaStream_t stream) {
  const int d = a.cache.d, n_heads = a.of_a_head() ? 1 : a.group;
  if (a.dtype == DType::kBF16 && (d == 64 || d == 128) && n_heads <= 16) {
    if (n_heads <= 8) return d == 64 ? StartBest<64, 1>(a, stream) : StartBest<128, 1>(a, stream);
    return d == 64 ? StartBest<64, 2>(a, stream) : StartBest<128, 2>(a, stream);
  }
  return a.dtype == DType::kBF16 ? StartPlain<Bf16>(a, stream) : StartPlain<float>(a, stream);
}

}  // namespace

void CudaOps::AttendChosen(ChosenMethod method, TensorView q, const PagedKv& cache, TensorView out,
                           QueueScores score) {
  CheckSelecting(q, cache, out);
  const int batch = static_cast<int>(q.shape[0]), heads = cache.n_kv_heads;
  if (batch == 0) return;
  Begin();
  ChosenArgs a = {PagedCache(cache),
                  method,
                  cache.dtype,
                  q.as<float>(),
                  q.stride[0],
                  out.data,
                  out.stride[0],
                  out.dtype == DType::kBF16,
                  batch,
                  static_cast<int>(q.shape[1]) / heads,
                  cache.page_table.shape[2] * PagedKv::kPageRows};
  // Long caches of many sequences would ask for gigabytes: they take turns.
  constexpr int64_t kMostWords = int64_t{64} << 20;
  const int64_t score_words = heads * a.planes() * a.room, row_words = heads * a.choices() * a.room;
  const int at_once = static_cast<int>(std::clamp<int64_t>(kMostWords / (score_words + row_words), 1, batch));
  char* memory = Reserve(at_once * (score_words + row_words) * sizeof(float));
  if (memory == nullptr) return;
  a.scores = reinterpret_cast<float*>(memory);
  a.rows = reinterpret_cast<int32_t*>(a.scores + at_once * score_words);
  const size_t out_bytes = DTypeSize(out.dtype) * out.stride[0];
  for (int first = 0; first < batch; first += at_once) {
    a.batch = std::min(at_once, batch - first);
    score(a, device_.n_sms, stream_);
    Keep(QueueAttention(a, stream_), "AttendChosen");
    a.cache.slots += a.batch;
    a.q += a.batch * a.q_stride;
    a.out = static_cast<char*>(a.out) + a.batch * out_bytes;
  }
  Launched("AttendChosen");
}

}  // namespace sluice
