#include "kernels/cuda/decode_attention.h"

#include "common/base/status.h"
#include "kernels/cuda/decode_ring.cuh"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {
namespace {

constexpr int kWarps = kDecodeWarps, kThreads = kWarps * kWarp;
// Rings of all warps of a block, in shared memory. The deep one leaves no room for another block: a
// multiprocessor that takes two of one sequence's parts while another has none makes all wait for it.
constexpr int kDeepRing = 128 << 10, kShallowRing = 32 << 10;
constexpr int kShallowBlocks = 4;  // of a multiprocessor

// A part: o [group, d], max [group], sum [group], in whole 16 bytes.
__host__ __device__ int64_t PartFloats(int group, int d) { return CeilDiv(group * (d + 2), 4) * 4; }

// kHeads: room for query heads of a group, 4, 8 or 16.
template <int kDim, int kHeads, int kRing>
struct Shared {
  union {
    struct {
      char ring[kRing];
      uint4 q[kHeads == 4 ? kDim : kQueryFragments < kDim, kHeads == 4 ? 1 : kHeads / 8 > ];
    };
    float o[kWarps][kHeads][kDim];            // after the last step
    float weights[kHeads][kMostDecodeParts];  // while parts are merged
  };
  float max[kWarps][kHeads], sum[kWarps][kHeads], part_sum[kHeads];
  bool last;
};

// Queries [group, kDim] -> the two bf16 parts that lanes of products read: side by side, or high parts before
// low ones. By the whole block.
template <int kDim, int kHeads>
__device__ void SplitGroup(const float* q, int group, uint4* to) {
  constexpr int kAll = (kHeads == 4 ? 1 : kHeads / 8) * kDim;  // shares of 8 values
  auto rest = [](float x, float y, uint32_t high) { return PackBf16(x - LowBf16(high), y - HighBf16(high)); };
#pragma unroll
  for (int at = threadIdx.x; at < kAll; at += kThreads) {
    const int lane = at % kWarp, block = at / kWarp % (kDim / 32);
    const int head = kHeads == 4 ? lane / 4 % 4 : at / kWarp / (kDim / 32) * 8 + lane / 4;
    float4 a = make_float4(0, 0, 0, 0), b = a;
    if (head < group) {
      const auto* from = reinterpret_cast<const float4*>(q + head * kDim + 32 * block + lane % 4 * 8);
      a = __ldcg(from);
      b = __ldcg(from + 1);
    }
    const uint4 high =
        make_uint4(PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w));
    const uint4 low = make_uint4(rest(a.x, a.y, high.x), rest(a.z, a.w, high.y), rest(b.x, b.y, high.z),
                                 rest(b.z, b.w, high.w));
    if constexpr (kHeads == 4) {
      to[at] = lane >= kWarp / 2 ? low : high;
    } else {
      to[at] = high;
      to[kAll + at] = low;
    }
  }
}

__device__ float SumOverRows(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// A warp's max and sum of every head -> shared.
template <int kDim, int kHeads, int kRing>
__device__ void ShareSums(const DecodeState<kDim, kHeads>& state, float scale,
                          Shared<kDim, kHeads, kRing>& shared) {
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  auto share = [&](int head, float max, float sum) {
    sum = SumOverRows(sum);
    if (g != 0 || head >= kHeads) return;
    shared.max[warp][head] = max * scale;
    shared.sum[warp][head] = sum;
  };
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if constexpr (kHeads == 4) {
      share(2 * t + c, state.max[c], state.sum[c]);
    } else {
#pragma unroll
      for (int i = 0; i < kHeads / 8; ++i) share(8 * i + 2 * t + c, state.max[i][c], state.sum[i][c]);
    }
  }
}

template <int kDim, int kHeads, int kRing>
__device__ float TopOf(const Shared<kDim, kHeads, kRing>& shared, int head) {
  float top = shared.max[0][head];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) top = fmaxf(top, shared.max[w][head]);
  return top;
}

// A warp's o -> shared, relative to the block's maximum.
template <int kDim, int kHeads, int kRing>
__device__ void ShareOutputs(const DecodeState<kDim, kHeads>& state, float scale,
                             Shared<kDim, kHeads, kRing>& shared) {
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  if constexpr (kHeads == 4) {
    // Lane t has high or low parts of two heads, lane t ^ 2 the others of the same: one head each.
    const bool second = t >= 2;
    const int head = 2 * (t % 2) + second;
    const float factor = Exp2((second ? state.max[1] : state.max[0]) * scale - TopOf(shared, head));
#pragma unroll
    for (int chunk = 0; chunk < kDim / 64; ++chunk) {  // a lane has 8 dims of every 64
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float(&o)[4] = state.o[4 * chunk + i / 2];
        const float a = o[2 * (i % 2)], b = o[2 * (i % 2) + 1];
        y[i] = ((second ? b : a) + __shfl_xor_sync(kAllLanes, second ? a : b, 2)) * factor;
      }
      auto* to = reinterpret_cast<float4*>(&shared.o[warp][head][chunk * 64 + 8 * g]);
      to[0] = make_float4(y[0], y[1], y[2], y[3]);
      to[1] = make_float4(y[4], y[5], y[6], y[7]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHeads / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int head = 8 * i + 2 * t + c;
        const float factor = Exp2(state.max[i][c] * scale - TopOf(shared, head));
#pragma unroll
        for (int tile = 0; tile < kDim / 16; ++tile)
          *reinterpret_cast<float2*>(&shared.o[warp][head][state.DimOf(tile, g)]) =
              make_float2(state.o[tile][i][c] * factor, state.o[tile][i][2 + c] * factor);
      }
    }
  }
}

// All parts of a head, in ascending order -> out.
template <int kDim, int kHeads, int kRing>
__device__ void MergeParts(const DecodeArgs& a, int entry, int kv_head, int n_parts, const float* parts,
                           Shared<kDim, kHeads, kRing>& shared) {
  constexpr int kAtOnce = 16;  // on their way before weights are known
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int values = a.group * kDim, part_floats = static_cast<int>(PartFloats(a.group, kDim));
  auto load = [&](int part, int at) {
    return __ldcg(reinterpret_cast<const float4*>(parts + part * part_floats + at));
  };
  float4 o[kAtOnce];
  const int first = 4 * threadIdx.x;
#pragma unroll
  for (int p = 0; p < kAtOnce; ++p)
    if (p < n_parts && first < values) o[p] = load(p, first);
#pragma unroll 1
  for (int head = warp; head < a.group; head += kWarps) {
    constexpr int kOfALane = kMostDecodeParts / kWarp;
    float max[kOfALane], sums[kOfALane], top = kMinusInfinity, sum = 0;
#pragma unroll
    for (int i = 0; i < kOfALane; ++i) {
      const int p = lane + i * kWarp;
      const float* stats = parts + p * part_floats + values + head;
      max[i] = p < n_parts ? __ldcg(stats) : kMinusInfinity;
      sums[i] = p < n_parts ? __ldcg(stats + a.group) : 0;
    }
#pragma unroll
    for (int i = 0; i < kOfALane; ++i) top = fmaxf(top, max[i]);
    top = WarpMax(top);
#pragma unroll
    for (int i = 0; i < kOfALane; ++i) {
      const float weight = Exp2(max[i] - top);
      shared.weights[head][lane + i * kWarp] = weight;
      sum += weight * sums[i];
    }
    sum = WarpSum(sum);
    if (lane == 0) shared.part_sum[head] = sum;
  }
  __syncthreads();
  for (int at = first; at < values; at += 4 * kThreads) {
    const float* weights = shared.weights[at / kDim];
    float4 y = make_float4(0, 0, 0, 0);
    auto add = [&](int p, const float4& x) {
      const float weight = weights[p];
      y.x += weight * x.x;
      y.y += weight * x.y;
      y.z += weight * x.z;
      y.w += weight * x.w;
    };
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
      if (p < n_parts) add(p, at == first ? o[p] : load(p, at));
#pragma unroll 16
    for (int p = kAtOnce; p < n_parts; ++p) add(p, load(p, at));
    const float back = 1 / shared.part_sum[at / kDim];
    a.out.Put(entry, kv_head * values + at, make_float4(y.x * back, y.y * back, y.z * back, y.w * back));
  }
}

// o of all warps -> out, or this part's, and from all parts -> out.
template <int kDim, int kHeads, int kRing>
__device__ void Finish(const DecodeArgs& a, int entry, int kv_head, int part, int n_parts, float scale,
                       const DecodeState<kDim, kHeads>& state, Shared<kDim, kHeads, kRing>& shared) {
  ShareSums(state, scale, shared);
  __syncthreads();  // also: nobody reads the ring and q any more
  ShareOutputs(state, scale, shared);
  __syncthreads();
  const int values = a.group * kDim, unit = entry * a.cache.heads + kv_head;
  const int64_t part_floats = PartFloats(a.group, kDim);
  float* parts = a.partials + int64_t{unit} * MaxDecodeParts(a.cache.heads) * part_floats;
  float* own = parts + part * part_floats;
  for (int at = 4 * threadIdx.x; at < values; at += 4 * kThreads) {
    const int head = at / kDim, dim = at % kDim;
    const float top = TopOf(shared, head);
    float4 y = make_float4(0, 0, 0, 0);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 x = *reinterpret_cast<const float4*>(&shared.o[w][head][dim]);
      y.x += x.x;
      y.y += x.y;
      y.z += x.z;
      y.w += x.w;
      sum += shared.sum[w][head] * Exp2(shared.max[w][head] - top);
    }
    if (n_parts == 1) {
      const float back = 1 / sum;
      a.out.Put(entry, kv_head * values + at, make_float4(y.x * back, y.y * back, y.z * back, y.w * back));
      continue;
    }
    *reinterpret_cast<float4*>(own + at) = y;
    if (dim == 0) {
      own[values + head] = top;
      own[values + a.group + head] = sum;
    }
  }
  if (n_parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.last = atomicInc(&a.counters[unit], n_parts - 1) == n_parts - 1u;
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  MergeParts(a, entry, kv_head, n_parts, parts, shared);
}

// grid (parts at most, heads, batch).
template <int kDim, int kHeads, int kRing>
__global__ __launch_bounds__(kThreads,
                             kRing == kDeepRing ? 1
                             : kHeads > 8
                                 ? 2
                                 : kShallowBlocks) void AttendParts(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, kHeads, kRing>*>(memory);
  LetSuccessorStart();
  // Rows that were there before the kernels at work are fetched before these end; many blocks of short rows
  // are slower so. No kernel writes slots or tables; who counts a row has written it.
  constexpr bool kEarly = kRing == kDeepRing || kDim == 128;
  const int part = blockIdx.x, head = blockIdx.y, entry = blockIdx.z, slot = a.cache.slots[entry];
  const int32_t* kept = a.cache.kept_len.At(slot, head);
  if (!kEarly) WaitForPredecessor();
  DecodeRows rows(a.cache, slot, head);
  DecodeRing<kDim, kRing> ring(rows, shared.ring);
  auto start = [&] {
    const bool has_rows = part < rows.parts;
    ring.Start(has_rows ? rows.FirstOf(part) : 0, has_rows ? rows.FirstOf(part + 1) : 0);
  };
  rows.EndAt(LoadAcquire(kept));
  start();
  if (kEarly) {
    ring.FetchKnown(rows.n);
    WaitForPredecessor();
    if (rows.EndAt(__ldcg(kept))) {
      WaitAsync<0>();
      __syncwarp();
      start();
    }
  }
  rows.Check();
  if (part >= rows.parts) {
    WaitAsync<0>();
    return;
  }
  ring.Fill(rows.n);
  SplitGroup<kDim, kHeads>(a.q + entry * a.q_stride + head * a.group * kDim, a.group, shared.q);
  __syncthreads();
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int g = threadIdx.x % kWarp / 4;
  DecodeState<kDim, kHeads> state;
#pragma unroll 1
  for (int step = 0; ring.Has(step); ++step) {
    const int row = ring.RowOf(step) + g;
    const bool seen0 = rows.Seen(row), seen1 = rows.Seen(row + 8);
    if constexpr (kHeads == 4) {
      float s[4];
      {
        KeyStep<kDim> k;
        ring.TakeKeys(k);
        ScoreFourHeads<kDim>(k, shared.q, s);
      }
      ValueStep<kDim> v;
      ring.TakeValues(v);
      WeighFourHeads<kDim>(v, s, seen0, seen1, scale, state);
    } else {
      float s[kHeads / 8][4];
      {
        KeyStep<kDim> k;
        ring.TakeKeys(k);
        ScoreStep<kDim, kHeads / 8>(k, shared.q, s);
      }
      ValueStep<kDim> v;
      ring.TakeValues(v);
      WeighStep<kDim, kHeads / 8>(v, s, seen0, seen1, scale, state);
    }
  }
  Finish(a, entry, head, part, rows.parts, scale, state, shared);
}

// grid (heads, batch).
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendPlainRows(const __grid_constant__ DecodeArgs a) {
  extern __shared__ float floats[];
  const int entry = blockIdx.y, head = blockIdx.x, d = a.cache.d, slot = a.cache.slots[entry];
  const int begin = a.cache.Begin(slot, head), len = a.cache.Length(slot, head);
  SLUICE_DEVICE_CHECK(begin >= 0 && begin < len);
  const PlainShared shared(floats, a.group, d);
  const int first = head * a.group * d;
  const float* q = a.q + entry * a.q_stride + first;
  for (int i = threadIdx.x; i < a.group * d; i += kPlainThreads) shared.q[i] = q[i];
  auto row = [&](int i) {
    const int place = a.cache.Place(slot, head, begin + i);
    return KvRow<T>{a.cache.K<T>(place), a.cache.V<T>(place)};
  };
  auto lse = [](int, float) {};
  if (a.out.is_bf16) {
    AttendPlain<T>(shared, a.group, d, len - begin, row, a.out.At<Bf16>(entry, first), lse);
  } else {
    AttendPlain<T>(shared, a.group, d, len - begin, row, a.out.At<float>(entry, first), lse);
  }
}

template <int kDim, int kHeads, int kRing>
void Start(const DecodeArgs& a, dim3 grid, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kDim, kHeads, kRing>);
  static_assert(kBytes <= kMostSharedBytes);
  AllowSharedMemory(AttendParts<kDim, kHeads, kRing>);
  LaunchEarly(AttendParts<kDim, kHeads, kRing>, grid, kThreads, kBytes, stream, a);
}
template <int kDim, int kHeads>
void Start(const DecodeArgs& a, int n_sms, cudaStream_t stream) {
  const dim3 grid(MaxDecodeParts(a.cache.heads), a.cache.heads, a.batch);
  const bool alone = int64_t{grid.x} * grid.y * grid.z <= n_sms;
  alone ? Start<kDim, kHeads, kDeepRing>(a, grid, stream)
        : Start<kDim, kHeads, kShallowRing>(a, grid, stream);
}
template <int kDim>
void Start(const DecodeArgs& a, int n_sms, cudaStream_t stream) {
  if (a.group <= 4) return Start<kDim, 4>(a, n_sms, stream);
  if (a.group <= 8) return Start<kDim, 8>(a, n_sms, stream);
  Start<kDim, 16>(a, n_sms, stream);
}

template <class T>
void StartPlain(const DecodeArgs& a, cudaStream_t stream) {
  const size_t bytes = PlainSharedFloats(a.group, a.cache.d) * sizeof(float);
  AllowSharedMemory(AttendPlainRows<T>);
  AttendPlainRows<T><<<dim3(a.cache.heads, a.batch), kPlainThreads, bytes, stream>>>(a);
}

}  // namespace

int64_t DecodeScratchFloats(int batch, int heads, int group, int d) {
  return int64_t{batch} * heads * MaxDecodeParts(heads) * PartFloats(group, d);
}

void DecodeAttention(const DecodeArgs& a, int n_sms, cudaStream_t stream) {
  const int d = a.cache.d;
  if (a.dtype == DType::kBF16 && (d == 64 || d == 128) && a.group <= 16) {
    d == 64 ? Start<64>(a, n_sms, stream) : Start<128>(a, n_sms, stream);
  } else {
    a.dtype == DType::kBF16 ? StartPlain<Bf16>(a, stream) : StartPlain<float>(a, stream);
  }
}

}  // namespace sluice
