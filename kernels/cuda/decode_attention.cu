#include "kernels/cuda/decode_attention.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8;
constexpr int kStep = 16;                      // rows of a warp's step: the M of a tensor core product
constexpr int kStageRows = 2048;               // places that shared memory holds at once
constexpr int kPartRows = 2 * kWarps * kStep;  // a part's rows are a multiple of it
constexpr float kLog2E = 1.4426950408889634f;

// Two blocks a multiprocessor for one long sequence; more parts would only cost merging.
constexpr int kMostParts = 256;
__host__ __device__ int MaxParts(int heads) { return heads >= kMostParts ? 1 : kMostParts / heads; }
// A partial: o [group, d], max [group], sum [group], in whole 16 bytes.
__host__ __device__ int64_t PartFloats(int group, int d) { return CeilDiv(group * (d + 2), 4) * 4; }
__host__ __device__ int RowsOfAPart(int n, int heads) {
  return static_cast<int>(CeilDiv(CeilDiv(n, MaxParts(heads)), kPartRows)) * kPartRows;
}

// The rows of one (entry, head) in the order they are attended to: from the page table, or chosen.
struct Rows {
  const DecodeArgs& a;
  int unit, slot, head, first, begin, n;

  __device__ Rows(const DecodeArgs& args, int entry, int kv_head) : a(args), head(kv_head) {
    unit = entry * a.cache.heads + head;
    slot = a.cache.slots[a.first_entry + entry];
    if (a.chosen != nullptr) {
      begin = first = 0;
      n = a.n_chosen[unit];
    } else {
      begin = a.cache.Begin(slot, head);
      first = begin / kStep * kStep;
      n = a.cache.Length(slot, head) - first;
      SLUICE_DEVICE_CHECK(begin >= 0 && begin < first + n);
    }
  }
  // -1: not seen.
  __device__ int Place(int i) const {
    if (a.chosen != nullptr) return a.chosen[unit * a.chosen_stride + i];
    return first + i < begin ? -1 : a.cache.Place(slot, head, first + i);
  }
};

// Running softmax of a warp over its rows, for heads 2t and 2t + 1 of each tile of 8; o is [head, dim]
// transposed: tile i of 16 dims holds dim DimOf(i) in c0 and c1, the next in c2 and c3.
template <int kDim, int kTiles>
struct WarpState {
  float max[kTiles][2], sum[kTiles][2];
  float o[kDim / 16][kTiles][4];

  __device__ WarpState() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      max[i][0] = max[i][1] = kMinusInfinity;
      sum[i][0] = sum[i][1] = 0;
    }
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) o[i][j][k] = 0;
  }
  __device__ static int DimOf(int tile, int g) { return tile / 4 * 64 + g * 8 + tile % 4 * 2; }
};

__device__ uint32_t Word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Steps warp, warp + kWarps, ... over `rows` staged places. Keys are the A of the first product and values,
// transposed, the A of the second: both go from global memory straight into fragments, 16 bytes a lane. q
// holds the queries as two bf16 parts, and weights are split so too: products keep 16 bits of each.
template <int kDim, int kTiles>
__device__ void AttendStaged(const PagedCache& cache, const int* places, int rows, const uint4* q,
                             float scale, WarpState<kDim, kTiles>& state) {
  constexpr int kBlocks = kDim / 32, kChunks = kDim / 64;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int steps = static_cast<int>(CeilDiv(rows, kStep));
  const uint4 zero = make_uint4(0, 0, 0, 0);

  uint4 k[kBlocks][2];
  auto load_keys = [&](int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = places[step * kStep + 8 * half + g];
      const Bf16* row = cache.K<Bf16>(max(place, 0)) + 8 * t;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) k[b][half] = place >= 0 ? LoadStream(row + 32 * b) : zero;
    }
  };
  if (warp < steps) load_keys(warp);
  for (int step = warp; step < steps; step += kWarps) {
    uint4 v[4][kChunks];  // rows 2t, 2t + 1, 2t + 8, 2t + 9; dims g * 8 .. + 7 of every 64
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int place = places[step * kStep + 2 * t + j % 2 + j / 2 * 8];
      const Bf16* row = cache.V<Bf16>(max(place, 0)) + 8 * g;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) v[j][c] = place >= 0 ? LoadStream(row + 64 * c) : zero;
    }
    const bool seen0 = places[step * kStep + g] >= 0, seen1 = places[step * kStep + 8 + g] >= 0;

    float s[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint4 x = q[((part * kTiles + i) * kBlocks + b) * kWarp + lane];
          MmaBf16(s[i], k[b][0].x, k[b][1].x, k[b][0].y, k[b][1].y, x.x, x.y);
          MmaBf16(s[i], k[b][0].z, k[b][1].z, k[b][0].w, k[b][1].w, x.z, x.w);
        }
      }
    }
    if (step + kWarps < steps) load_keys(step + kWarps);

#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t high[2], low[2];  // weights as B fragments: rows 0-7 and 8-15
      float p[4], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float s0 = seen0 ? s[i][c] : kMinusInfinity, s1 = seen1 ? s[i][2 + c] : kMinusInfinity;
        float top = fmaxf(s0, s1);
#pragma unroll
        for (int step_lane = 4; step_lane < kWarp; step_lane *= 2)
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step_lane));
        const float old = state.max[i][c], now = fmaxf(old, top);
        const float base = now == kMinusInfinity ? 0 : now * scale;
        p[c] = Exp2(s0 * scale - base);
        p[2 + c] = Exp2(s1 * scale - base);
        shrink[c] = Exp2(old * scale - base);
        state.max[i][c] = now;
        state.sum[i][c] = state.sum[i][c] * shrink[c] + (p[c] + p[2 + c]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = PackBf16(p[2 * half], p[2 * half + 1]);
        high[half] = Transpose8x8(pair);
        low[half] = Transpose8x8(PackBf16(p[2 * half] - LowBf16(pair), p[2 * half + 1] - HighBf16(pair)));
      }
#pragma unroll
      for (int tile = 0; tile < kDim / 16; ++tile) {
        float(&o)[4] = state.o[tile][i];
        o[0] *= shrink[0];
        o[1] *= shrink[1];
        o[2] *= shrink[0];
        o[3] *= shrink[1];
        const uint32_t w0 = Word(v[0][tile / 4], tile % 4), w1 = Word(v[1][tile / 4], tile % 4),
                       w2 = Word(v[2][tile / 4], tile % 4), w3 = Word(v[3][tile / 4], tile % 4);
        const uint32_t a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632),
                       a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
        MmaBf16(o, a0, a1, a2, a3, high[0], high[1]);
        MmaBf16(o, a0, a1, a2, a3, low[0], low[1]);
      }
    }
  }
}

template <int kDim, int kTiles>
struct Shared {
  static constexpr int kHeads = 8 * kTiles;
  union {
    struct {
      uint4 q[2 * kTiles * (kDim / 32) * kWarp];
      int places[kStageRows];
    };
    float o[kWarps][kHeads][kDim];      // after the last step
    float weights[kHeads][kMostParts];  // while parts are merged
  };
  float max[kWarps][kHeads], sum[kWarps][kHeads], part_sum[kHeads];
  bool last;
};

// o of all warps -> out, or this part's partial: o [group, d], max [group], sum [group].
template <int kDim, int kTiles>
__device__ void Finish(const DecodeArgs& a, const Rows& rows, int entry, int part, int n_parts, float scale,
                       WarpState<kDim, kTiles>& state, Shared<kDim, kTiles>& shared) {
  constexpr int kThreads = kWarps * kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = state.sum[i][c];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (g == 0) {
        shared.max[warp][8 * i + 2 * t + c] = state.max[i][c] * scale;
        shared.sum[warp][8 * i + 2 * t + c] = sum;
      }
    }
  }
  __syncthreads();  // also: nobody reads places and q any more
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 8 * i + 2 * t + c;
      float top = kMinusInfinity;
      for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.max[w][head]);
      const float factor = Exp2(state.max[i][c] * scale - top);
#pragma unroll
      for (int tile = 0; tile < kDim / 16; ++tile) {
        float2 pair = make_float2(state.o[tile][i][c] * factor, state.o[tile][i][2 + c] * factor);
        reinterpret_cast<float2&>(shared.o[warp][head][state.DimOf(tile, g)]) = pair;
      }
    }
  }
  __syncthreads();
  const int64_t part_floats = PartFloats(a.group, kDim);
  float* parts = a.partials + int64_t{rows.unit} * MaxParts(a.cache.heads) * part_floats;
  float* own = parts + part * part_floats;
  float* out = a.out + (a.first_entry + entry) * a.out_stride + rows.head * a.group * kDim;
  for (int at = threadIdx.x; at < a.group * kDim; at += kThreads) {
    const int head = at / kDim, dim = at % kDim;
    float top = kMinusInfinity, y = 0, sum = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.max[w][head]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      y += shared.o[w][head][dim];
      sum += shared.sum[w][head] * Exp2(shared.max[w][head] - top);
    }
    if (n_parts == 1) {
      out[at] = y / sum;
      continue;
    }
    own[at] = y;
    if (dim == 0) {
      own[a.group * kDim + head] = top;
      own[a.group * (kDim + 1) + head] = sum;
    }
  }
  if (n_parts == 1) return;

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.last = atomicInc(&a.counters[rows.unit], n_parts - 1) == n_parts - 1u;
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  for (int head = warp; head < a.group; head += kWarps) {
    auto max_of = [&](int p) { return __ldcg(parts + p * part_floats + a.group * kDim + head); };
    float top = kMinusInfinity, sum = 0;
    for (int p = lane; p < n_parts; p += kWarp) top = fmaxf(top, max_of(p));
    top = WarpMax(top);
    for (int p = lane; p < n_parts; p += kWarp) {
      const float weight = Exp2(max_of(p) - top);
      shared.weights[head][p] = weight;
      sum += weight * __ldcg(parts + p * part_floats + a.group * (kDim + 1) + head);
    }
    sum = WarpSum(sum);
    if (lane == 0) shared.part_sum[head] = sum;
  }
  __syncthreads();
  for (int at = 4 * threadIdx.x; at < a.group * kDim; at += 4 * kThreads) {
    const float* weights = shared.weights[at / kDim];
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll 16
    for (int p = 0; p < n_parts; ++p) {
      const float4 o = __ldcg(reinterpret_cast<const float4*>(parts + p * part_floats + at));
      const float weight = weights[p];
      y.x += weight * o.x;
      y.y += weight * o.y;
      y.z += weight * o.z;
      y.w += weight * o.w;
    }
    const float scale_back = 1 / shared.part_sum[at / kDim];
    out[at] = y.x * scale_back;
    out[at + 1] = y.y * scale_back;
    out[at + 2] = y.z * scale_back;
    out[at + 3] = y.w * scale_back;
  }
}

// grid (parts at most, heads, batch).
template <int kDim, int kTiles>
__global__ __launch_bounds__(kWarps* kWarp,
                             kTiles == 1 ? 2 : 1) void AttendParts(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, kTiles>*>(memory);
  const int part = blockIdx.x, entry = blockIdx.z;
  const Rows rows(a, entry, blockIdx.y);
  const int part_rows = RowsOfAPart(rows.n, a.cache.heads);
  const int n_parts = static_cast<int>(CeilDiv(rows.n, part_rows));
  if (part >= n_parts) return;

  const float* q = a.q + (a.first_entry + entry) * a.q_stride + rows.head * a.group * kDim;
  for (int at = threadIdx.x; at < kTiles * (kDim / 32) * kWarp; at += kWarps * kWarp) {
    const int lane = at % kWarp, block = at / kWarp % (kDim / 32), tile = at / kWarp / (kDim / 32);
    const int head = 8 * tile + lane / 4;
    uint4 high = make_uint4(0, 0, 0, 0), low = high;
    if (head < a.group) {
      const float* x = q + head * kDim + 32 * block + lane % 4 * 8;
      auto split = [x](int i, uint32_t& h, uint32_t& l) {
        h = PackBf16(x[i], x[i + 1]);
        l = PackBf16(x[i] - LowBf16(h), x[i + 1] - HighBf16(h));
      };
      split(0, high.x, low.x);
      split(2, high.y, low.y);
      split(4, high.z, low.z);
      split(6, high.w, low.w);
    }
    shared.q[at] = high;
    shared.q[kTiles * (kDim / 32) * kWarp + at] = low;
  }
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int begin = part * part_rows, end = min(rows.n, begin + part_rows);
  WarpState<kDim, kTiles> state;
  for (int stage = begin; stage < end; stage += kStageRows) {
    const int n = min(kStageRows, end - stage);
    __syncthreads();
    for (int i = threadIdx.x; i < CeilDiv(n, kStep) * kStep; i += kWarps * kWarp)
      shared.places[i] = i < n ? rows.Place(stage + i) : -1;
    __syncthreads();
    AttendStaged<kDim, kTiles>(a.cache, shared.places, n, shared.q, scale, state);
  }
  Finish<kDim, kTiles>(a, rows, entry, part, n_parts, scale, state, shared);
}

// grid (heads, batch).
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendPlainRows(const __grid_constant__ DecodeArgs a) {
  extern __shared__ float floats[];
  const int entry = blockIdx.y, d = a.cache.d;
  const Rows rows(a, entry, blockIdx.x);
  const PlainShared shared(floats, a.group, d);
  const float* q = a.q + (a.first_entry + entry) * a.q_stride + rows.head * a.group * d;
  for (int i = threadIdx.x; i < a.group * d; i += kPlainThreads) shared.q[i] = q[i];
  auto row = [&](int i) {
    const int place = rows.Place(i);
    return place < 0 ? KvRow<T>{nullptr, nullptr} : KvRow<T>{a.cache.K<T>(place), a.cache.V<T>(place)};
  };
  AttendPlain<T>(shared, a.group, d, rows.n, row,
                 a.out + (a.first_entry + entry) * a.out_stride + rows.head * a.group * d, [](int, float) {});
}

template <int kDim, int kTiles>
void Start(const DecodeArgs& a, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kDim, kTiles>);
  cudaFuncSetAttribute(AttendParts<kDim, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(MaxParts(a.cache.heads), a.cache.heads, a.batch);
  AttendParts<kDim, kTiles><<<grid, kWarps * kWarp, kBytes, stream>>>(a);
}

template <class T>
void StartPlain(const DecodeArgs& a, cudaStream_t stream) {
  const size_t bytes = PlainSharedFloats(a.group, a.cache.d) * sizeof(float);
  cudaFuncSetAttribute(AttendPlainRows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  AttendPlainRows<T><<<dim3(a.cache.heads, a.batch), kPlainThreads, bytes, stream>>>(a);
}

}  // namespace

int64_t DecodeScratchFloats(int batch, int heads, int group, int d) {
  return int64_t{batch} * heads * MaxParts(heads) * PartFloats(group, d);
}

void DecodeAttention(const DecodeArgs& a, cudaStream_t stream) {
  const int d = a.cache.d;
  if (a.dtype == DType::kBF16 && (d == 64 || d == 128) && a.group <= 16) {
    if (a.group <= 8) {
      d == 64 ? Start<64, 1>(a, stream) : Start<128, 1>(a, stream);
    } else {
      d == 64 ? Start<64, 2>(a, stream) : Start<128, 2>(a, stream);
    }
  } else {
    a.dtype == DType::kBF16 ? StartPlain<Bf16>(a, stream) : StartPlain<float>(a, stream);
  }
}

}  // namespace sluice
