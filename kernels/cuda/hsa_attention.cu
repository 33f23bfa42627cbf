// Hybrid sparse attention in one kernel: a cluster of blocks per (sequence, KV head) scores its pages, a
// warp a run of 64; every block then gets all page weights and finds the cut; each attends to its share of
// the chosen rows; the parts are merged where their head dims belong. Blocks speak through shared memory
// only.
#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/hsa_layout.cuh"
#include "kernels/cuda/hsa_scores.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

constexpr int kCutPer = 5;  // keys of a thread on their way at once

// One (sequence, KV head).
struct Unit {
  int len, page, channels, tokens, n_pages, n_runs;
  __device__ int PageSize(int j) const { return j == n_pages - 1 ? len - j * page : page; }
};

__device__ int32_t PlaceOf(const int32_t* page_ids, int row) {
  return page_ids[row / PagedKv::kPageRows] * (2 * PagedKv::kPageRows) + row % PagedKv::kPageRows;
}

// Runs r, r + n, ... of this warp, the r-th of n of its cluster: weights of their pages, the mean over the
// group of the softmax over tokens, to all blocks, as bits, which order as the weights do; all in base 2.
// `ready`: called once before the first word to another block. Ends behind a barrier of the cluster.
template <class T, int kDim, int kBlocks, class Shared>
__device__ void ShareWeights(const PagedCache& cache, const Unit& unit, int group, Channels channels,
                             const int32_t* chunk_ids, Shared& s, float* scores, uint32_t* weights) {
  constexpr int kOwn = kHsaWarps<kDim, kBlocks>, kAll = kBlocks * kOwn;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, d = cache.d, n_tiles = Tiles(group);
  const int self = ClusterRank() + kBlocks * (threadIdx.x / kWarp);
  auto scores_of = [&](int index, int tile) {
    return reinterpret_cast<float4*>(scores + (int64_t{index} * n_tiles + tile) * kRunScores) + lane;
  };
  // A warp's runs are successive in its block's memory.
  const int own_first = threadIdx.x / kWarp, own_step = kOwn;

#pragma unroll 1
  for (int tile = 0; tile < n_tiles; ++tile) {
    float most[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};  // heads 2t, 2t + 1
    bool prepared = false;
    auto prepare = [&] {
      if (prepared) return;
      prepared = true;
      if (tile > 0) __syncthreads();  // the last tile's is no longer read
      channels.Prepare(tile, d, unit.channels);
      __syncthreads();
    };
    if (self >= unit.n_runs) prepare();
#pragma unroll 1
    for (int run = self, own = own_first; run < unit.n_runs; run += kAll, own += own_step) {
      float c[4][4];
      ScoreRun<kBlocks == 4 ? 4 : 2>(RunBounds<T>(cache, chunk_ids, unit.page, run), channels, tile, d,
                                     unit.channels, c, prepare);
      const float2 scale = reinterpret_cast<const float2*>(channels.inverse_tau)[t];
      const float scales[2] = {scale.x, scale.y};
      const int first = run * kRunPages + 8 * g;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          c[m][i] = first + 2 * m + i / 2 < unit.n_pages ? c[m][i] * scales[i % 2] : kMinusInfinity;
        scores_of(own, tile)[m * kWarp] = make_float4(c[m][0], c[m][1], c[m][2], c[m][3]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = most[i];
#pragma unroll
        for (int m = 0; m < 4; ++m) top = fmaxf(top, fmaxf(c[m][i], c[m][2 + i]));
        if (top == kMinusInfinity) continue;
        sum[i] *= Exp2(most[i] - top);
        most[i] = top;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          sum[i] += unit.PageSize(first + 2 * m) * Exp2(c[m][i] - top);
          sum[i] += unit.PageSize(first + 2 * m + 1) * Exp2(c[m][2 + i] - top);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = most[i];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
      sum[i] *= top == kMinusInfinity ? 0 : Exp2(most[i] - top);
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], step);
      most[i] = top;
    }
    if (tile == 0) ClusterWait();  // the others are here, and have read what the last unit left
    if (self < unit.n_runs && g < kBlocks)
      StoreRemote(RemoteAddress(s.stats + (self * n_tiles + tile) * kTileHeads + 2 * t, g),
                  make_float4(most[0], sum[0], most[1], sum[1]));
  }
  ClusterArrive();
  ClusterWait();

  // Of heads 2t, 2t + 1: a weight is the sum over the group of 2^(score - top) * share.
  float top[2], share[2];
  auto gather = [&](int tile) {
    const int n = min(kAll, unit.n_runs);
    top[0] = top[1] = kMinusInfinity;
    float sum[2] = {0, 0};
    float4 x[kClusterWarps / 8];  // of warps g, g + 8, ...
#pragma unroll
    for (int i = 0; i < kClusterWarps / 8; ++i) {
      const int w = g + 8 * i;
      x[i] = make_float4(kMinusInfinity, 0, kMinusInfinity, 0);
      if (w < n) x[i] = reinterpret_cast<const float4*>(s.stats + (w * n_tiles + tile) * kTileHeads)[t];
      top[0] = fmaxf(top[0], x[i].x);
      top[1] = fmaxf(top[1], x[i].z);
    }
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], step));
      top[1] = fmaxf(top[1], __shfl_xor_sync(kAllLanes, top[1], step));
    }
#pragma unroll
    for (int i = 0; i < kClusterWarps / 8; ++i) {
      sum[0] += x[i].y * Exp2(x[i].x - top[0]);
      sum[1] += x[i].w * Exp2(x[i].z - top[1]);
    }
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) {
      sum[0] += __shfl_xor_sync(kAllLanes, sum[0], step);
      sum[1] += __shfl_xor_sync(kAllLanes, sum[1], step);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) share[i] = tile * kTileHeads + 2 * t + i < group ? 1 / (sum[i] * group) : 0;
  };
  gather(0);
  uint32_t low = ~0u, high = 0;
#pragma unroll 1
  for (int run = self, own = own_first; run < unit.n_runs; run += kAll, own += own_step) {
    float w[8] = {};
#pragma unroll 1
    for (int tile = 0; tile < n_tiles; ++tile) {
      if (n_tiles > 1) gather(tile);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float4 x = scores_of(own, tile)[m * kWarp];
        w[2 * m] += Exp2(x.x - top[0]) * share[0] + Exp2(x.y - top[1]) * share[1];
        w[2 * m + 1] += Exp2(x.z - top[0]) * share[0] + Exp2(x.w - top[1]) * share[1];
      }
    }
    const int first = run * kRunPages + 8 * g;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] += __shfl_xor_sync(kAllLanes, w[i], 1);
      w[i] += __shfl_xor_sync(kAllLanes, w[i], 2);
      if (first + i >= unit.n_pages) continue;
      low = min(low, __float_as_uint(w[i]));
      high = max(high, __float_as_uint(w[i]));
    }
    const float4 a = make_float4(w[0], w[1], w[2], w[3]), b = make_float4(w[4], w[5], w[6], w[7]);
    if (weights != s.weights) {
      if (t == 0) {
        reinterpret_cast<float4*>(weights + first)[0] = a;
        reinterpret_cast<float4*>(weights + first)[1] = b;
      }
    } else if (t < kBlocks) {  // lane t tells block t
      const uint32_t to = RemoteAddress(s.weights + first, t);
      StoreRemote(to, a);
      StoreRemote(to + 16, b);
    }
  }
  low = __reduce_min_sync(kAllLanes, low);
  high = __reduce_max_sync(kAllLanes, high);
  if (self < unit.n_runs && lane < kBlocks)
    StoreRemote(RemoteAddress(s.ranges + self, lane),
                make_float2(__uint_as_float(low), __uint_as_float(high)));
  ClusterArrive();
  ClusterWait();
}

// The rows chosen by (weight, page), ascending, are cut into steps; every kBlocks-th step is this block's ->
// places.
template <int kDim, int kBlocks, class Shared>
__device__ void ChooseRows(const Unit& unit, Shared& s, const uint32_t* weights, const int32_t* page_ids,
                           int32_t* places) {
  constexpr int kOwn = kHsaWarps<kDim, kBlocks>, kThreads = kOwn * kWarp;
  const int lane = threadIdx.x % kWarp, rank = ClusterRank();
  uint2 range = make_uint2(~0u, 0);
  if (lane < min(kBlocks * kOwn, unit.n_runs)) range = s.ranges[lane];
  const Items items = {unit.n_pages, unit.page, unit.len - (unit.n_pages - 1) * unit.page};
  auto key = [=](int j) { return weights[j]; };
  const Cut cut = FindCut<kThreads, kCutPer>(items, unit.tokens, __reduce_min_sync(kAllLanes, range.x),
                                             __reduce_max_sync(kAllLanes, range.y), key, *s.select);
  auto emit = [&](int j, int taken, int before) {
#pragma unroll 1
    for (int first = 0; first < taken; first += 4) {
#pragma unroll
      for (int r = first; r < first + 4; ++r) {
        const int at = before + r, step = at / kStep, row = j * unit.page + r;
        if (r < taken && step % kBlocks == rank)
          places[step / kBlocks * kStep + at % kStep] = PlaceOf(page_ids, row);
      }
    }
  };
  EmitInOrder(items, cut, key, emit, *s.select);
}

// This warp's part -> the blocks of the cluster: each gets its share of the dims.
template <int kDim, int kTiles, int kBlocks, class Shared>
__device__ void SharePart(const WarpState<kDim, kTiles>& state, int part, float scale, Shared& s) {
  constexpr int kHeads = kTileHeads * kTiles, kDims = kDim / kBlocks;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    float sum[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum[c] = state.sum[i][c];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], step);
    }
    if (g < kBlocks)
      StoreRemote(RemoteAddress(s.part_stats + part * kHeads + kTileHeads * i + 2 * t, g),
                  make_float4(state.max[i][0] * scale, sum[0], state.max[i][1] * scale, sum[1]));
#pragma unroll
    for (int chunk = 0; chunk < kDim / 64; ++chunk) {  // a lane has 8 dims of every 64
      const int dim = chunk * 64 + 8 * g;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t to = RemoteAddress(
            s.parts + (part * kHeads + kTileHeads * i + 2 * t + c) * kDims + dim % kDims, dim / kDims);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&x)[4] = state.o[4 * chunk + 2 * half][i];
          const float(&y)[4] = state.o[4 * chunk + 2 * half + 1][i];
          StoreRemote(to + 16 * half, make_float4(x[c], x[2 + c], y[c], y[2 + c]));
        }
      }
    }
  }
}

// grid: whole clusters, as many as there is room for; each takes every n-th (sequence, KV head).
// kDim 0: any head size, KV dtype and group, on ordinary cores.
template <class T, int kDim, int kTiles, int kBlocks>
__global__ __cluster_dims__(kBlocks)
    __launch_bounds__(kHsaWarps<kDim, kBlocks>* kWarp,
                      1) void AttendHybrid(const __grid_constant__ HsaArgs a) {
  extern __shared__ __align__(16) char memory[];
  constexpr bool kPlain = kDim == 0;
  constexpr int kOwn = kHsaWarps<kDim, kBlocks>, kThreads = kOwn * kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rank = ClusterRank(), group = a.group;
  const int d = kDim > 0 ? kDim : a.cache.d, cluster = blockIdx.x / kBlocks, n_clusters = gridDim.x / kBlocks;
  const int heads = kPlain ? group : kTileHeads * kTiles, dims = d / kBlocks;  // of parts
  auto&& s = HsaShared<kDim, kTiles, kBlocks>::At(memory, group, d);

  LetSuccessorStart();
  ClusterArrive();
  WaitForPredecessor();
  for (int index = cluster; index < a.n_units; index += n_clusters) {
    const int entry = index / a.cache.heads, head = index % a.cache.heads;
    const int slot = a.cache.slots[entry];
    Channels channels = {s.q, s.magnitude, s.upper, s.lines, s.channel_fragments, s.inverse_tau};
    channels.Load(a.q + entry * a.q_stride + head * group * d, group, d);
    const HsaSettings hsa = a.cache.Hsa(slot);
    Unit unit;
    unit.len = a.cache.Length(slot, head);
    const int32_t* page_ids = a.cache.page_table.At(slot, head);
    const int32_t* chunk_ids = a.cache.chunk_table.At(slot, head);
    const int32_t page_id = threadIdx.x < a.cache.max_pages ? page_ids[threadIdx.x] : 0;
    const int32_t chunk_id = threadIdx.x < a.cache.max_chunks ? chunk_ids[threadIdx.x] : 0;
    __syncthreads();
    const Room room(a.cache);
    SLUICE_DEVICE_CHECK(hsa.page >= 1 && hsa.channels >= 1 && hsa.channels <= d && hsa.tokens >= 1 &&
                        unit.len > 0 && unit.len <= room.rows);
    unit.page = hsa.page;
    unit.channels = hsa.channels;
    unit.tokens = min(hsa.tokens, unit.len);
    unit.n_pages = (unit.len + unit.page - 1) / unit.page;
    unit.n_runs = (unit.n_pages + kRunPages - 1) / kRunPages;
    SLUICE_DEVICE_CHECK(unit.n_pages <= room.pages);
    channels.Choose(d, unit.channels, unit.page > 1);
    s.page_ids[threadIdx.x] = page_id;
    s.chunk_ids[threadIdx.x] = chunk_id;
    __syncthreads();
    if (unit.len <= kThreads * PagedKv::kPageRows) page_ids = s.page_ids;
    if (unit.n_runs <= kThreads) chunk_ids = s.chunk_ids;

    const int n_steps = (unit.tokens + kStep - 1) / kStep,
              own_steps = (n_steps - rank + kBlocks - 1) / kBlocks;
    const int missing =
        (n_steps - 1) % kBlocks == rank ? n_steps * kStep - unit.tokens : 0;  // of the last step
    const int n = own_steps * kStep - missing;
    const Scratch scratch(a, kBlocks, cluster, rank);
    int32_t* places = n <= kHeldRows ? s.places : scratch.places;
    if (unit.tokens < unit.len) {
      const bool held = unit.n_pages <= kHeldPages;
      uint32_t* weights = held ? s.weights : scratch.weights;
      ShareWeights<T, kDim, kBlocks>(a.cache, unit, group, channels, chunk_ids, s,
                                     held ? s.scores : scratch.scores, weights);
      ChooseRows<kDim, kBlocks>(unit, s, weights, page_ids, places);
    } else {
      ClusterWait();
      for (int i = threadIdx.x; i < n; i += kThreads)
        places[i] = PlaceOf(page_ids, (i / kStep * kBlocks + rank) * kStep + i % kStep);
    }
    if (threadIdx.x < missing) places[n + threadIdx.x] = -1;
    if constexpr (!kPlain) SplitQueries<kDim, kTiles>(s.q, group, s.fragments);
    __syncthreads();

    if constexpr (kPlain) {
      if (n > 0) {
        PlainShared plain(s.plain, group, d);
        plain.q = s.q;
        auto row = [&](int i) { return KvRow<T>{a.cache.K<T>(places[i]), a.cache.V<T>(places[i])}; };
        auto stats = [&](int g, float lse) {
          for (int r = 0; r < kBlocks; ++r)
            StoreRemote(RemoteAddress(s.part_stats + rank * heads + g, r), make_float2(lse * kLog2E, 1));
        };
        AttendPlain<T>(plain, group, d, n, row, plain.o, stats);
        for (int i = threadIdx.x; i < group * d; i += kThreads) {
          const int g = i / d, c = i % d;
          StoreRemote(RemoteAddress(s.parts + (rank * heads + g) * dims + c % dims, c / dims), plain.o[i]);
        }
      }
    } else {
      if (warp * kStep < n) {
        const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
        WarpState<kDim, kTiles> state;
        AttendStaged<kDim, kTiles, kOwn>(a.cache, places, n, s.fragments, scale, state);
        SharePart<kDim, kTiles, kBlocks>(state, rank + kBlocks * warp, scale, s);
      }
    }
    ClusterArrive();
    ClusterWait();
    // This block's dims of all heads; parts in ascending order.
    const int n_parts = min(n_steps, kParts<kDim, kBlocks>);
#pragma unroll 1
    for (int g = warp; g < group; g += kOwn) {  // a lane a part
      const float2 part = lane < n_parts ? s.part_stats[lane * heads + g] : make_float2(kMinusInfinity, 0);
      const float weight = Exp2(part.x - WarpMax(part.x));
      const float sum = WarpSum(part.y * weight);
      if (lane < n_parts) s.part_weights[lane * heads + g] = weight / sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < group * dims; at += kThreads) {
      const int g = at / dims, c = at % dims;
      float y = 0;
#pragma unroll 4
      for (int p = 0; p < n_parts; ++p)
        y += s.parts[(p * heads + g) * dims + c] * s.part_weights[p * heads + g];
      a.out[entry * a.out_stride + (head * group + g) * d + rank * dims + c] = y;
    }
    if (index + n_clusters < a.n_units) {
      ClusterArrive();  // what the others left here has been read
      __syncthreads();
    }
  }
}

template <class T, int kDim, int kTiles, int kBlocks>
cudaError_t Start(const HsaArgs& a, int n_clusters, cudaStream_t stream) {
  const size_t bytes = HsaShared<kDim, kTiles, kBlocks>::Bytes(a.group, a.cache.d);
  auto kernel = AttendHybrid<T, kDim, kTiles, kBlocks>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess)
    LaunchEarly(kernel, n_clusters * kBlocks, kHsaWarps<kDim, kBlocks> * kWarp, bytes, stream, a);
  return error;
}

}  // namespace

void CudaOps::HsaAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckDecode(q, cache, out);
  SLUICE_CHECK(!cache.hsa.empty());
  const int batch = static_cast<int>(q.shape[0]), heads = cache.n_kv_heads, d = cache.head_dim;
  const int group = static_cast<int>(q.shape[1]) / heads;
  if (batch == 0) return;
  Begin();
  HsaArgs a = {PagedCache(cache), q.as<float>(), q.stride[0],   out.as<float>(),
               out.stride[0],     group,         batch * heads, nullptr};
  // A block has a multiprocessor to itself: four small ones a cluster where there are enough of them, else
  // two.
  const bool fast = cache.dtype == DType::kBF16 && (d == 64 || d == 128) && group <= 16;
  const int blocks = !fast || (group <= 8 && a.n_units * 4 <= device_.n_sms) ? 4 : 2;
  const int n_clusters = std::min(a.n_units, std::max(1, device_.n_sms / blocks));
  const Room room(a.cache);
  if (room.pages > kHeldPages || room.own_rows(blocks) > kHeldRows) {
    a.scratch = Reserve(n_clusters * Scratch::Words(room, group, blocks) * sizeof(uint32_t));
    if (a.scratch == nullptr) return;
  }
  auto start = [&]<int kDim>() {
    if (group > 8) return Start<Bf16, kDim, 2, 2>(a, n_clusters, stream_);
    return blocks == 4 ? Start<Bf16, kDim, 1, 4>(a, n_clusters, stream_)
                       : Start<Bf16, kDim, 1, 2>(a, n_clusters, stream_);
  };
  cudaError_t error;
  if (fast) {
    error = d == 64 ? start.operator()<64>() : start.operator()<128>();
  } else {
    error = cache.dtype == DType::kBF16 ? Start<Bf16, 0, 1, 4>(a, n_clusters, stream_)
                                        : Start<float, 0, 1, 4>(a, n_clusters, stream_);
  }
  Keep(error, "HsaAttention");
  Launched("HsaAttention");
}

}  // namespace sluice
