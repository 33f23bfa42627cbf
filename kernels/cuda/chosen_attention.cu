#include "kernels/cuda/chosen_attention.cuh"

#include <algorithm>

#include "kernels/cuda/cluster_select.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/hsa_attend.cuh"
#include "kernels/cuda/plain_attention.cuh"
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

  // choice: of all heads of the entry.
  __device__ ChosenUnit(const ChosenArgs& a, int choice, int of_entry)
      : entry(of_entry),
        slot(a.cache.slots[entry]),
        head(choice / a.choices()),
        first(choice % a.choices()),
        n_heads(a.of_a_head() ? 1 : a.group),
        len(a.cache.Length(slot, head)),
        settings(a.cache.Hsa(slot)) {
    SLUICE_DEVICE_CHECK(settings.tokens >= 1 && len > 0 && len <= a.room);
    SLUICE_DEVICE_CHECK(a.method != ChosenMethod::kQuest || settings.page > 1);
    SLUICE_DEVICE_CHECK(a.method != ChosenMethod::kSparqWithMean || settings.sums != 0);
  }
  // What is chosen: pages or rows.
  __device__ int ItemRows(const ChosenArgs& a) const {
    return a.method == ChosenMethod::kQuest ? settings.page : 1;
  }
  __device__ int Items(const ChosenArgs& a) const { return (len + ItemRows(a) - 1) / ItemRows(a); }
  __device__ int ChosenItems(const ChosenArgs& a) const {
    return min(max(1, settings.tokens / ItemRows(a)), Items(a));
  }
  // Of the rows that were chosen; the last page may be among them, and short.
  __device__ int ChosenRows(const ChosenArgs& a, const int32_t* rows) const {
    const int page = ItemRows(a), k = ChosenItems(a), last = rows[(k - 1) * page];
    return (k - 1) * page + min(page, len - last);
  }
  __device__ const float* Query(const ChosenArgs& a) const {
    return a.q + entry * a.q_stride + (head * a.group + first) * a.cache.d;
  }
  __device__ int32_t* Rows(const ChosenArgs& a) const {
    return a.rows + ((int64_t{entry} * a.cache.heads + head) * a.choices() + first) * a.room;
  }
};

// Of n scores in base 2 the largest, and the sum of 2^(score - largest). By a block of kThreads.
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

struct ChooseShared {
  ClusterSelectShared select;
  float reduced[kSelectWarps];
  alignas(8) float2 own[kMaxGroup];  // of each head's scores in this block's share: largest, sum
  alignas(8) float2 all[kMaxGroup];  // of all its scores
};

// The softmax of each head of a group over scores of all rows -> s.all. By the cluster.
__device__ void FindStats(const ChosenArgs& a, const ChosenUnit& u, const ClusterShare& share,
                          ChooseShared& s) {
  for (int g = 0; g < u.n_heads; ++g) {
    const float* scores = a.Scores(u.entry, u.head, g) + share.begin;
    const float2 own = SoftmaxStats<kSelectThreads>(scores, share.own, s.reduced);
    if (threadIdx.x == 0) s.own[g] = own;
  }
  ClusterArrive();
  ClusterWait();
  for (int g = threadIdx.x; g < u.n_heads; g += kSelectThreads) {
    float tops[kSelectBlocks], top = kMinusInfinity, sum = 0;
#pragma unroll
    for (int b = 0; b < kSelectBlocks; ++b) {
      tops[b] = __int_as_float(LoadRemote(RemoteAddress(&s.own[g].x, b)));
      top = fmaxf(top, tops[b]);
    }
#pragma unroll
    for (int b = 0; b < kSelectBlocks; ++b)
      sum += __int_as_float(LoadRemote(RemoteAddress(&s.own[g].y, b))) * Exp2(tops[b] - top);
    s.all[g] = make_float2(top, sum);
  }
  __syncthreads();
}

// grid (kSelectBlocks, heads * choices, batch): a cluster a choice. The rows that are best -> the unit's
// rows, ascending. A block has the keys of its share in shared memory where `held`.
__global__ __cluster_dims__(kSelectBlocks, 1, 1)
    __launch_bounds__(kSelectThreads) void ChooseRows(const __grid_constant__ ChosenArgs a, bool held) {
  extern __shared__ uint32_t keys[];
  __shared__ ChooseShared s;
  const ChosenUnit u(a, blockIdx.y, blockIdx.z);
  int32_t* rows = u.Rows(a);
  const int page = u.ItemRows(a), n_items = u.Items(a), k = u.ChosenItems(a);
  if (k == n_items) {
    for (int i = ClusterRank() * kSelectThreads + threadIdx.x; i < u.len; i += kSelectBlocks * kSelectThreads)
      rows[i] = i;
    return;
  }
  const ClusterShare share(n_items);
  s.select.Clear();
  const bool weighs = a.method == ChosenMethod::kTopKOfGroup;
  if (weighs || a.method == ChosenMethod::kSparqWithMean) FindStats(a, u, share, s);
  if (a.method == ChosenMethod::kSparqWithMean && ClusterRank() == 0)
    for (int g = threadIdx.x; g < a.group; g += kSelectThreads) a.Stats(u.entry, u.head)[g] = s.all[g];

  const float* scores = a.Scores(u.entry, u.head, a.is_sparq() ? a.group : u.first) + share.begin;
  const int forced = a.is_sparq() ? u.len - k / 4 - 1 - share.begin : share.own;  // from this one on
  auto key_of = [&](int i) {
    if (i >= forced) return ~0u;
    if (!weighs) return OrderedKey(scores[i]);
    float weight = 0;  // the mean over the group of the softmax over all rows
    for (int g = 0; g < a.group; ++g)
      weight += __fdividef(Exp2(scores[g * a.room + i] - s.all[g].x), s.all[g].y);
    return __float_as_uint(weight);
  };
  if (held) {
#pragma unroll 4
    for (int i = threadIdx.x; i < share.own; i += kSelectThreads) keys[i] = key_of(i);
  }
  __syncthreads();
  auto key = [&](int i) { return held ? keys[i] : key_of(i); };
  const Cut cut = FindCutTogether(share.own, k, key, s.select);
  auto emit = [&](int i, int at) {
    const int first = (share.begin + i) * page, size = min(page, u.len - first);
    for (int r = 0; r < size; ++r) rows[at * page + r] = first + r;
  };
  EmitTogether(share.own, cut, key, emit, s.select);
}

// Of each head the part of the softmax over all scores that the n chosen rows have -> shares; 1 where no mean
// is wanted. By a block of kThreads, which must meet before it reads them.
template <int kThreads>
__device__ void FindShares(const ChosenArgs& a, const ChosenUnit& u, const int32_t* rows, int n,
                           float* reduced, float* shares) {
  const bool all = a.method != ChosenMethod::kSparqWithMean || n == u.len;
  for (int g = 0; g < u.n_heads; ++g) {
    float share = 1;
    if (!all) {
      const float* scores = a.Scores(u.entry, u.head, g);
      const float2 stats = a.Stats(u.entry, u.head)[g];
      float sum = 0;
      for (int i = threadIdx.x; i < n; i += kThreads) sum += Exp2(scores[rows[i]] - stats.x);
      share = BlockSum(sum, reduced) / stats.y;
    }
    if (threadIdx.x == 0) shares[g] = share;
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
  float reduced[kWarps], shares[kHeads];
};

// grid (heads * choices, batch). Each warp attends to its steps of 16 of the chosen rows; warps are
// merged in order.
template <int kDim, int kTiles>
__global__ __launch_bounds__(AttendShared<kDim, kTiles>::kThreads) void AttendBest(
    const __grid_constant__ ChosenArgs a) {
  extern __shared__ __align__(16) char memory[];
  using Shared = AttendShared<kDim, kTiles>;
  auto& s = *reinterpret_cast<Shared*>(memory);
  constexpr int kThreads = Shared::kThreads, kWarps = Shared::kWarps;
  const ChosenUnit u(a, blockIdx.x, blockIdx.y);
  const int32_t* rows = u.Rows(a);
  const int n = u.ChosenRows(a, rows);
  SplitQueries<kDim, kTiles>(u.Query(a), u.n_heads, s.q);
  __syncthreads();
  FindShares<kThreads>(a, u, rows, n, s.reduced, s.shares);

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
    StoreChosen(a, u, head, dim, y / sum, s.shares[head]);
  }
}

// The same on ordinary cores.
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendBestPlain(const __grid_constant__ ChosenArgs a) {
  extern __shared__ float floats[];
  __shared__ float reduced[kPlainThreads / kWarp], shares[kMaxGroup];
  const ChosenUnit u(a, blockIdx.x, blockIdx.y);
  const int d = a.cache.d;
  const int32_t* rows = u.Rows(a);
  const int n = u.ChosenRows(a, rows);
  FindShares<kPlainThreads>(a, u, rows, n, reduced, shares);
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
    StoreChosen(a, u, i / d, i % d, shared.q[i], shares[i / d]);
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

cudaError_t QueueChoice(const ChosenArgs& a, cudaStream_t stream) {
  const int64_t keys = CeilDiv(a.room, kSelectBlocks);  // at most: pages are fewer
  const bool held = keys <= kMostHeldKeys;
  auto kernel = ChooseRows;
  const cudaError_t error = AllowSharedMemory(kernel);
  if (error == cudaSuccess)
    kernel<<<dim3(kSelectBlocks, a.cache.heads * a.choices(), a.batch), kSelectThreads,
             held ? keys * sizeof(uint32_t) : 0, stream>>>(a, held);
  return error;
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
  const int64_t words = score_words + row_words + int64_t{2} * heads * a.group;
  const int at_once = static_cast<int>(std::clamp<int64_t>(kMostWords / words, 1, batch));
  char* memory = Reserve(at_once * words * sizeof(float));
  if (memory == nullptr) return;
  a.scores = reinterpret_cast<float*>(memory);
  a.rows = reinterpret_cast<int32_t*>(a.scores + at_once * score_words);
  a.stats = reinterpret_cast<float2*>(a.rows + at_once * row_words);
  const size_t out_bytes = DTypeSize(out.dtype) * out.stride[0];
  for (int first = 0; first < batch; first += at_once) {
    a.batch = std::min(at_once, batch - first);
    score(a, device_.n_sms, stream_);
    Keep(QueueChoice(a, stream_), "ChooseRows");
    Keep(QueueAttention(a, stream_), "AttendChosen");
    a.cache.slots += a.batch;
    a.q += a.batch * a.q_stride;
    a.out = static_cast<char*>(a.out) + a.batch * out_bytes;
  }
  Launched("AttendChosen");
}

}  // namespace sluice
