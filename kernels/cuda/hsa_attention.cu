// Hybrid sparse attention in one kernel: a cluster of blocks per (sequence, KV head) scores its pages, a warp
// a run of 64; every block then has all scores and finds the cut; warps attend to their share of the chosen
// rows; the parts are merged where their head dims belong. Blocks speak through shared memory only.
#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/hsa_attend.cuh"
#include "kernels/cuda/hsa_choice.cuh"
#include "kernels/cuda/hsa_layout.cuh"
#include "kernels/cuda/hsa_plain.cuh"
#include "kernels/cuda/hsa_scores.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

// Where scores and stats go: what each block holds, or the memory of the cluster.
template <class S>
__device__ void Tell(float2* to, float4 x, bool held) {
  if (held) {
    Cluster<S::kBlocks>::SendAll(reinterpret_cast<float*>(to), x);
  } else {
    *reinterpret_cast<float4*>(to) = x;
  }
}

// The scores of one run, in base 2, and for each head their largest, and the sum over tokens of 2^(score -
// largest). A lane has kPages successive pages from `first` on of heads `head` and head + 1: x[page][head];
// lanes of equal lane % kStep have the others of these heads.
template <class S, int kPages, int kStep>
__device__ void KeepScores(const Unit& unit, int run, int first, int head, float2 scale,
                           float (&x)[kPages][2], const PageScores& to, bool held) {
  float2 top = make_float2(kMinusInfinity, kMinusInfinity), sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const bool seen = first + i < unit.n_pages;
    x[i][0] = seen ? x[i][0] * scale.x : kMinusInfinity;
    x[i][1] = seen ? x[i][1] * scale.y : kMinusInfinity;
    top.x = fmaxf(top.x, x[i][0]);
    top.y = fmaxf(top.y, x[i][1]);
  }
  float2* scores = to.scores + (head / 2) * to.pages + first;
#pragma unroll
  for (int i = 0; i < kPages; i += 2)
    Tell<S>(scores + i, make_float4(x[i][0], x[i][1], x[i + 1][0], x[i + 1][1]), held);
  top.x = ColumnMax<kStep>(top.x);
  top.y = ColumnMax<kStep>(top.y);
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const float size = unit.PageSize(first + i);
    sum.x += size * Exp2(x[i][0] - top.x);
    sum.y += size * Exp2(x[i][1] - top.y);
  }
  sum.x = ColumnSum<kStep>(sum.x);
  sum.y = ColumnSum<kStep>(sum.y);
  if (threadIdx.x % kWarp < kStep)
    Tell<S>(to.stats + run * S::kHeads + head, make_float4(top.x, sum.x, top.y, sum.y), held);
}

// Runs r, r + n, ... of this warp, the r-th of n of its cluster -> scores and stats of all blocks. Called
// with lines chosen; prepare(): fragments and temperatures, by the block.
template <class S, class Channels, class Prepare>
__device__ void ScorePages(const PagedCache& cache, const Unit& unit, const Channels& channels,
                           const int32_t* chunk_ids, const PageScores& to, bool held, Prepare prepare) {
  constexpr int kHeads = S::kHeads, kTiles = kHsaTiles<kHeads>, kAll = S::kBlocks * S::kWarps;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int self = Cluster<S::kBlocks>::Rank() + S::kBlocks * (threadIdx.x / kWarp);
  const int n_slices = WholeSlices(unit.channels) / kSlice;
  RunSlices<S::kFlying> v;
  const Bf16* bounds = nullptr;
  if (self < unit.n_runs) {
    bounds = RunBounds<Bf16>(cache, chunk_ids, unit.page, self);
    v.Load(bounds, channels.lines, 0, n_slices);
  }
  // What does not come to registers at once, into L2.
#pragma unroll 1
  for (int run = self; run < unit.n_runs; run += kAll) {
    const Bf16* of_run = RunBounds<Bf16>(cache, chunk_ids, unit.page, run);
#pragma unroll 1
    for (int i = (run == self ? S::kFlying * kSlice : 0) + lane; i < unit.channels; i += kWarp)
      Prefetch(of_run + channels.lines[i] * kRunPages);
  }
  prepare();
  Cluster<S::kBlocks>::Wait();  // the others are here, and have read what the last unit left
#pragma unroll 1
  for (int run = self; run < unit.n_runs; run += kAll) {
    float c[kTiles][4][4] = {};
#pragma unroll 1
    for (int first = 0; first < n_slices; first += S::kFlying) {
      ScoreSlices<kHeads>(v, channels.fragments, first, n_slices, c);
      int next = first + S::kFlying;
      if (next >= n_slices) {
        if (run + kAll >= unit.n_runs) break;
        bounds = RunBounds<Bf16>(cache, chunk_ids, unit.page, run + kAll);
        next = 0;
      }
      v.Load(bounds, channels.lines, next, n_slices);
    }
    if constexpr (kHeads == 4) {
      // Columns h and h + 4 add up to head h: lanes t and t + 2 have both for half of the pages each.
      const bool upper = t >= 2;
      float x[4][2];
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float own = upper ? c[0][m + 2][i] : c[0][m][i], other = upper ? c[0][m][i] : c[0][m + 2][i];
          x[2 * m + i / 2][i % 2] = own + __shfl_xor_sync(kAllLanes, other, 2);
        }
      const int head = 2 * (t % 2);
      const float2 scale = *reinterpret_cast<const float2*>(channels.inverse_tau + head);
      // Lanes of equal t % 2 have the same heads.
      KeepScores<S, 4, 2>(unit, run, run * kRunPages + 8 * g + 4 * (t / 2), head, scale, x, to, held);
    } else {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float x[8][2];
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i / 2][i % 2] = c[tile][i / 4][i % 4];
        const int head = 8 * tile + 2 * t;
        const float2 scale = *reinterpret_cast<const float2*>(channels.inverse_tau + head);
        KeepScores<S, 8, 4>(unit, run, run * kRunPages + 8 * g, head, scale, x, to, held);
      }
    }
  }
  Cluster<S::kBlocks>::Meet();
}

// A part -> the blocks of the cluster: each gets its share of the dims.
template <class S>
__device__ void SharePart(const DecodeState<S::kDim, S::kHeads>& state, int part, float scale,
                          HsaShared<S>& s) {
  constexpr int kHeads = S::kHeads;
  using Blocks = Cluster<S::kBlocks>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  auto send = [&](int head, int dim, float4 x) {
    Blocks::Send(s.parts() + (part * kHeads + head) * S::kDims + dim % S::kDims, dim / S::kDims, x);
  };
  auto tell = [&](int head, float4 x) {
    Blocks::SendAll(reinterpret_cast<float*>(s.part_stats + part * kHeads + head), x);
  };
  if constexpr (kHeads == 4) {
    const float sum0 = ColumnSum<4>(state.sum[0]), sum1 = ColumnSum<4>(state.sum[1]);
    if (lane < 2) tell(2 * t, make_float4(state.max[0] * scale, sum0, state.max[1] * scale, sum1));
    // Lane t has high or low parts of two heads, lane t ^ 2 the others of the same: one head each.
    const bool second = t >= 2;
#pragma unroll
    for (int chunk = 0; chunk < S::kDim / 64; ++chunk) {  // a lane has 8 dims of every 64
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float(&o)[4] = state.o[4 * chunk + i / 2];
        const float a = o[2 * (i % 2)], b = o[2 * (i % 2) + 1];
        y[i] = (second ? b : a) + __shfl_xor_sync(kAllLanes, second ? a : b, 2);
      }
      const int head = 2 * (t % 2) + second, dim = chunk * 64 + 8 * g;
      send(head, dim, make_float4(y[0], y[1], y[2], y[3]));
      send(head, dim + 4, make_float4(y[4], y[5], y[6], y[7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHeads / 8; ++i) {
      const float sum0 = ColumnSum<4>(state.sum[i][0]), sum1 = ColumnSum<4>(state.sum[i][1]);
      if (g == 0)
        tell(8 * i + 2 * t, make_float4(state.max[i][0] * scale, sum0, state.max[i][1] * scale, sum1));
#pragma unroll
      for (int chunk = 0; chunk < S::kDim / 64; ++chunk) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float(&x)[4] = state.o[4 * chunk + 2 * half][i];
            const float(&y)[4] = state.o[4 * chunk + 2 * half + 1][i];
            send(8 * i + 2 * t + c, chunk * 64 + 8 * g + 4 * half,
                 make_float4(x[c], x[2 + c], y[c], y[2 + c]));
          }
        }
      }
    }
  }
}

// This block's dims of all heads; parts in ascending order.
template <class S>
__device__ void MergeParts(HsaShared<S>& s, int n_parts, int group, const DecodeOut& out, int entry,
                           int first) {
  for (int at = 4 * threadIdx.x; at < group * S::kDims; at += 4 * S::kThreads) {
    const int g = at / S::kDims, c = at % S::kDims;
    const float2* stats = s.part_stats + g;
    const float* parts = s.parts() + g * S::kDims + c;
    float top = kMinusInfinity, sum = 0;
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int p = 0; p < n_parts; ++p) top = fmaxf(top, stats[p * S::kHeads].x);
#pragma unroll 4
    for (int p = 0; p < n_parts; ++p) {
      const float2 of_part = stats[p * S::kHeads];
      const float weight = Exp2(of_part.x - top);
      const float4 x = *reinterpret_cast<const float4*>(parts + p * (S::kHeads * S::kDims));
      sum += of_part.y * weight;
      y.x += x.x * weight;
      y.y += x.y * weight;
      y.z += x.z * weight;
      y.w += x.w * weight;
    }
    const float scale = __fdividef(1, sum);
    out.Put(entry, first + g * S::kDim + c, make_float4(y.x * scale, y.y * scale, y.z * scale, y.w * scale));
  }
}

// The first kCount entries of a table of n. By the block.
template <int kThreads, int kCount>
__device__ void CopyTable(const int32_t* from, int n, int32_t* to) {
#pragma unroll
  for (int i = 0; i < (kCount + kThreads - 1) / kThreads; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < min(kCount, n)) to[at] = from[at];
  }
}

// Blocks that are their own cluster share pieces of scratch, for few units need one: whoever has a piece
// gives it back without waiting for anybody. By the block.
__device__ void TakePiece(unsigned* taken) {
  if (threadIdx.x == 0)
    while (atomicCAS(taken, 0, 1) != 0) __nanosleep(200);
  __syncthreads();
}
__device__ void GivePiece(unsigned* taken) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicExch(taken, 0);
  }
}

// grid: whole clusters, as many as there is room for; each takes every n-th (sequence, KV head).
template <class S>
__global__ __cluster_dims__(S::kBlocks)
    __launch_bounds__(S::kThreads, S::kPerSm) void AttendHybrid(const __grid_constant__ HsaArgs a) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kDim = S::kDim, kHeads = S::kHeads, kBlocks = S::kBlocks;
  using Blocks = Cluster<kBlocks>;
  auto& s = *reinterpret_cast<HsaShared<S>*>(memory);
  const int warp = threadIdx.x / kWarp, rank = Blocks::Rank(), group = a.group;
  const int cluster = blockIdx.x / kBlocks, n_clusters = gridDim.x / kBlocks;

  LetSuccessorStart();
  Blocks::Arrive();
  for (int index = cluster; index < a.n_units; index += n_clusters) {
    // No kernel writes slots, tables or settings.
    const int entry = index / a.cache.heads, head = index % a.cache.heads;
    const int slot = a.cache.slots[entry];
    const HsaSettings hsa = a.cache.Hsa(slot);
    const int32_t* page_ids = a.cache.page_table.At(slot, head);
    const int32_t* chunk_ids = a.cache.chunk_table.At(slot, head);
    CopyTable<S::kThreads, HsaShared<S>::kTable>(page_ids, a.cache.max_pages, s.page_ids);
    CopyTable<S::kThreads, HsaShared<S>::kTable / 4>(chunk_ids, a.cache.max_chunks, s.chunk_ids);
    if (index == cluster) WaitForPredecessor();
    Unit unit;
    unit.len = a.cache.Length(slot, head);
    Channels<kDim, kHeads, S::kThreads> channels = {s.q,     s.magnitude,         s.upper,
                                                    s.lines, s.channel_fragments, s.inverse_tau};
    channels.Load(a.q + entry * a.q_stride + head * group * kDim, group);
    const Room room(a.cache);
    SLUICE_DEVICE_CHECK(hsa.page >= 1 && hsa.channels >= 1 && hsa.channels <= kDim && hsa.tokens >= 1 &&
                        unit.len > 0 && unit.len <= room.rows);
    unit.page = hsa.page;
    unit.channels = hsa.channels;
    unit.tokens = min(hsa.tokens, unit.len);
    unit.n_pages = (unit.len + unit.page - 1) / unit.page;
    unit.n_runs = (unit.n_pages + kRunPages - 1) / kRunPages;
    SLUICE_DEVICE_CHECK(unit.n_pages <= room.pages);
    if (unit.len <= HsaShared<S>::kTable * PagedKv::kPageRows) page_ids = s.page_ids;
    if (unit.n_runs <= HsaShared<S>::kTable / 4) chunk_ids = s.chunk_ids;

    const int n_steps = (unit.tokens + kStep - 1) / kStep;
    const int piece = cluster % a.n_pieces;
    const bool held = unit.n_pages <= S::kHeldPages;
    const bool shares_piece = kBlocks == 1 && !(held && unit.tokens <= S::kHeldRows);
    if (shares_piece) TakePiece(a.taken + piece);
    const Scratch scratch(a, kHeads, kBlocks, piece, rank);
    int32_t* rows = unit.tokens <= S::kHeldRows ? s.rows : scratch.rows;
    __syncthreads();
    auto prepare = [&] {
      channels.Prepare(unit.channels);
      SplitHsaQueries<kDim, kHeads>(s.q, group, s.query_fragments);
      s.choice.Clear();
      __syncthreads();
    };
    if (unit.tokens < unit.len) {
      channels.Choose(unit.channels, unit.page > 1);
      __syncthreads();
      PageScores scores = scratch.scores;
      if (held) {  // a page's scores are no longer needed when it gets its weight
        float2* own = reinterpret_cast<float2*>(s.scores);
        scores = {own, s.stats, own, S::kHeldPages};
      }
      ScorePages<S>(a.cache, unit, channels, chunk_ids, scores, held, prepare);
      ChooseRows<S>(unit, scores, group, rows, s.choice, s.select);
    } else {
      Blocks::Wait();
      SplitHsaQueries<kDim, kHeads>(s.q, group, s.query_fragments);
      for (int i = threadIdx.x; i < unit.tokens; i += S::kThreads) rows[i] = i;
    }
    __syncthreads();

    const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
    const int n_parts = min(n_steps, kHsaParts), own_part = rank + kBlocks * warp;
    constexpr int kAll = kBlocks * S::kWarps;
#pragma unroll 1
    for (int step = own_part; step < n_parts; step += kAll)
      PrefetchStep<kDim>(a.cache, page_ids, rows, unit.tokens, step);
#pragma unroll 1
    for (int part = own_part; part < n_parts; part += kAll) {
      DecodeState<kDim, kHeads> state;
      AttendSteps<kDim, kHeads, kHsaParts>(a.cache, page_ids, rows, unit.tokens, part, s.query_fragments,
                                           scale, state);
      SharePart<S>(state, part, scale, s);
    }
    Blocks::Meet();
    MergeParts<S>(s, n_parts, group, a.out, entry, head * group * kDim + rank * S::kDims);
    if (shares_piece) GivePiece(a.taken + piece);
    if (index + n_clusters < a.n_units) {
      Blocks::Arrive();  // what the others left here has been read
      __syncthreads();
    }
  }
}

template <class S>
cudaError_t Start(const HsaArgs& a, int n_clusters, cudaStream_t stream) {
  auto kernel = AttendHybrid<S>;
  constexpr size_t kBytes = sizeof(HsaShared<S>);
  const cudaError_t error = AllowSharedMemory(kernel);
  if (error == cudaSuccess) LaunchEarly(kernel, n_clusters * S::kBlocks, S::kThreads, kBytes, stream, a);
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
  HsaArgs a = {PagedCache(cache), q.as<float>(), q.stride[0], DecodeOut(out), group, batch * heads};
  const Room room(a.cache);
  auto start = [&]<class S>(S) {
    const int n_clusters = std::min(a.n_units, std::max(1, device_.n_sms * S::kPerSm / S::kBlocks));
    a.n_pieces = S::kBlocks > 1 ? n_clusters : std::min(n_clusters, (device_.n_sms + 1) / 2);
    if (room.pages > S::kHeldPages || room.rows > S::kHeldRows) {
      a.scratch = Reserve(a.n_pieces * Scratch::Words(room, S::kHeads, S::kBlocks) * sizeof(uint32_t));
      a.taken = Counters(a.n_pieces);
      if (a.scratch == nullptr || a.taken == nullptr) return cudaSuccess;
    }
    return Start<S>(a, n_clusters, stream_);
  };
  // Four small blocks a cluster, each with a multiprocessor to itself, where there are enough of these, then
  // two large ones, else one small block, two of which share a multiprocessor.
  const int spare = device_.n_sms / a.n_units;
  auto of_dim = [&]<int kDim>() {
    SLUICE_CHECK(out.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(out.data) % 16 == 0);
    if (group > 8) return start(HsaShape<kDim, 16, 2, 16, 1, 1024>());
    if (group > 4) {
      if (spare >= 4) return start(HsaShape<kDim, 8, 4, 8, 1, 4096>());
      if (spare >= 2) return start(HsaShape<kDim, 8, 2, 16, 1, 4096>());
      return start(HsaShape<kDim, 8, 1, 8, 2, 2048>());
    }
    if (spare >= 4) return start(HsaShape<kDim, 4, 4, 8, 1, 4096>());
    if (spare >= 2) return start(HsaShape<kDim, 4, 2, 16, 1, 4096>());
    return start(HsaShape<kDim, 4, 1, 8, 2, 4096>());
  };
  cudaError_t error;
  if (cache.dtype == DType::kBF16 && (d == 64 || d == 128) && group <= 16) {
    error = d == 64 ? of_dim.operator()<64>() : of_dim.operator()<128>();
  } else {
    a.n_pieces = std::min(a.n_units, (device_.n_sms + 1) / 2);
    a.scratch = Reserve(a.n_pieces * PlainHsaWords(a) * sizeof(uint32_t));
    if (a.scratch == nullptr) return;
    error = PlainHsaAttention(a, cache.dtype, stream_);
  }
  Keep(error, "HsaAttention");
  Launched("HsaAttention");
}

}  // namespace sluice
