#include "kernels/cuda/decode_attention.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/plain_attention.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 4;
// Rings of all warps of a block, in shared memory: where a multiprocessor has one block, that needs more
// bytes on their way than each of several.
constexpr int kDeepRing = 64 << 10, kShallowRing = 32 << 10;

// One block a multiprocessor for one long sequence; more parts would only cost merging.
constexpr int kMostParts = 128;
__host__ __device__ int MaxParts(int heads) { return heads >= kMostParts ? 1 : kMostParts / heads; }
// A partial: o [group, d], max [group], sum [group], in whole 16 bytes.
__host__ __device__ int64_t PartFloats(int group, int d) { return CeilDiv(group * (d + 2), 4) * 4; }
// Whole pages, and a step for every warp; short rows come with few heads, which have many parts.
__device__ int RowsOfAPart(int n, int heads, int d) {
  const int least = (d > 64 ? 1 : 4) * PagedKv::kPageRows;
  return static_cast<int>(CeilDiv(CeilDiv(n, MaxParts(heads)), least)) * least;
}

// What its writer wrote before a __threadfence() and this is visible as well.
__device__ int LoadAcquire(const int32_t* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(p) : "memory");
  return x;
}

// The rows of one (entry, head), from the page table: whole pages from that of the first row seen.
struct Rows {
  const DecodeArgs& a;
  int unit, slot, head, first, begin, n;

  __device__ Rows(const DecodeArgs& args, int entry, int kv_head, int of_slot, int length)
      : a(args), unit(entry * args.cache.heads + kv_head), slot(of_slot), head(kv_head) {
    begin = a.cache.Begin(slot, head);
    first = begin / PagedKv::kPageRows * PagedKv::kPageRows;
    n = length - first;
  }
  __device__ void Check() const { SLUICE_DEVICE_CHECK(begin >= 0 && begin < first + n); }
  __device__ bool Seen(int i) const { return i < n && first + i >= begin; }
  // -1: not seen.
  __device__ int Place(int i) const { return first + i < begin ? -1 : a.cache.Place(slot, head, first + i); }
  __device__ const int32_t* Pages() const {
    return a.cache.page_table.At(slot, head) + first / PagedKv::kPageRows;
  }
};

template <int kDim, int kTiles, int kRing>
struct Shared {
  static constexpr int kHeads = 8 * kTiles;
  union {
    struct {
      char ring[kRing];
      uint4 q[kQueryFragments<kDim, kTiles>];
    };
    float o[kWarps][kHeads][kDim];      // after the last step
    float weights[kHeads][kMostParts];  // while parts are merged
  };
  float max[kWarps][kHeads], sum[kWarps][kHeads], part_sum[kHeads];
  bool last;
};

// o of all warps -> out, or this part's partial: o [group, d], max [group], sum [group].
template <int kDim, int kTiles, int kRing>
__device__ void Finish(const DecodeArgs& a, const Rows& rows, int entry, int part, int n_parts, float scale,
                       WarpState<kDim, kTiles>& state, Shared<kDim, kTiles, kRing>& shared) {
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
  __syncthreads();  // also: nobody reads the ring and q any more
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
  float* out = a.out + entry * a.out_stride + rows.head * a.group * kDim;
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

// A warp's steps of rows [begin, end) through a ring in shared memory: K of a step, V of it, K of the next,
// by asynchronous copies. Pieces of 16 bytes lie so that the lanes of a fragment meet no bank twice.
template <int kDim, int kRing>
class StepRing {
 public:
  static constexpr int kSlotBytes = kStep * kDim * 2, kSlots = kRing / kWarps / kSlotBytes;
  static_assert(kSlots >= 2);

  __device__ StepRing(const Rows& rows, char* ring)
      : rows_(rows), lane_(threadIdx.x % kWarp), ring_(ring + threadIdx.x / kWarp * (kSlots * kSlotBytes)) {}

  // Rows from `begin`, of a page, on, below `limit`. Nothing is on its way.
  __device__ void Start(int begin, int limit) {
    begin_ = begin;
    limit_ = limit;
    fetched_ = 0;
    pages_ = PagesOf(0);
    next_pages_ = PagesOf(kWarp);
  }
  // Whole steps below `end`, as many as there is room for.
  __device__ void FetchKnown(int end) {
    end_ = end;
    while (fetched_ < kSlots && RowOf(fetched_ / 2) + kStep <= end) Fetch(fetched_);
  }
  // Rows end at `end`: fills the ring.
  __device__ void Fill(int end) {
    end_ = end;
    while (fetched_ < kSlots) Fetch(fetched_);
  }
  __device__ int RowOf(int step) const { return begin_ + (threadIdx.x / kWarp + step * kWarps) * kStep; }

  __device__ void TakeKeys(KeyStep<kDim>& k) {
    const char* slot = Wait();
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b)
        k.x[b][half] = *reinterpret_cast<const uint4*>(slot + KeyOffset(8 * half + g, 4 * b + t));
    Refill();
  }
  __device__ void TakeValues(ValueStep<kDim>& v) {
    const char* slot = Wait();
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < kDim / 64; ++c)
        v.x[j][c] = *reinterpret_cast<const uint4*>(slot + ValueOffset(v.RowOf(j, t), 8 * c + g));
    Refill();
  }

 private:
  static constexpr int kPieces = kDim / 8, kRowsAtOnce = kWarp / kPieces;

  __device__ static uint32_t KeyOffset(int row, int piece) {
    return row * (kDim * 2) + ((piece ^ ((row & 1) << 2)) << 4);
  }
  __device__ static uint32_t ValueOffset(int row, int piece) {
    return row * (kDim * 2) + ((piece ^ ((row & 6))) << 4);
  }
  // The page of the lane's step of 32.
  __device__ int PagesOf(int step) const {
    const int row = RowOf(step + lane_);
    return row < limit_ ? rows_.Pages()[row / PagedKv::kPageRows] : 0;
  }
  __device__ const char* Wait() const {
    WaitAsync<kSlots - 1>();
    __syncwarp();  // all lanes' copies are here
    return ring_ + slot_ * kSlotBytes;
  }
  __device__ void Refill() {
    __syncwarp();  // all lanes have read the slot
    Fetch(slot_);
    if (++slot_ == kSlots) slot_ = 0;
  }
  __device__ void Fetch(int slot) {  // one group of copies, possibly empty
    const int step = fetched_ / 2, row = RowOf(step);
    const bool values = fetched_ % 2;
    if (row < end_) {
      if (!values) {
        if (step % kWarp == 0 && step > 0) {
          pages_ = next_pages_;
          next_pages_ = PagesOf(step + kWarp);
        }
        const int page = __shfl_sync(kAllLanes, pages_, step % kWarp);
        from_ = rows_.a.cache.K<Bf16>(page * (2 * PagedKv::kPageRows) + row % PagedKv::kPageRows);
      }
      const int first = lane_ / kPieces, piece = lane_ % kPieces;
      const Bf16* from = from_ + (values ? PagedKv::kPageRows * kDim : 0) + first * kDim + piece * 8;
      const uint32_t to = SharedAddress(ring_) + slot * kSlotBytes;
#pragma unroll
      for (int i = 0; i < kStep / kRowsAtOnce; ++i) {
        const int r = first + i * kRowsAtOnce;
        CopyAsync16(to + (values ? ValueOffset(r, piece) : KeyOffset(r, piece)),
                    from + i * kRowsAtOnce * kDim, rows_.Seen(row + r));
      }
    }
    CommitAsync();
    ++fetched_;
  }

  const Rows& rows_;
  const int lane_;
  const char* const ring_;
  int begin_ = 0, limit_ = 0, end_ = 0;
  int pages_ = 0, next_pages_ = 0;  // of the lane's step of this 32 and of the next
  int fetched_ = 0, slot_ = 0;
  const Bf16* from_ = nullptr;
};

// grid (parts at most, heads, batch).
template <int kDim, int kTiles, int kRing>
__global__ __launch_bounds__(kWarps* kWarp, kRing == kDeepRing || kTiles > 1
                                                ? 2
                                                : 4) void AttendParts(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, kTiles, kRing>*>(memory);
  LetSuccessorStart();
  // Where blocks have a multiprocessor to themselves, rows that were there before the kernels at work are
  // fetched before these end. No kernel writes slots or tables; who counts a row has written it.
  constexpr bool kEarly = kRing == kDeepRing;
  const int part = blockIdx.x, head = blockIdx.y, entry = blockIdx.z, slot = a.cache.slots[entry];
  const int32_t* kept = a.cache.kept_len.At(slot, head);
  if (!kEarly) WaitForPredecessor();
  Rows rows(a, entry, head, slot, LoadAcquire(kept));
  StepRing<kDim, kRing> ring(rows, shared.ring);
  int part_rows = 0, begin = 0;
  auto start = [&] {
    part_rows = RowsOfAPart(rows.n, a.cache.heads, kDim);
    begin = part * part_rows;
    ring.Start(begin, min(begin + part_rows, a.cache.max_pages * PagedKv::kPageRows - rows.first));
  };
  start();
  if (kEarly) {
    ring.FetchKnown(min(rows.n, begin + part_rows));
    WaitForPredecessor();
    rows.n = __ldcg(kept) - rows.first;
    if (RowsOfAPart(rows.n, a.cache.heads, kDim) != part_rows) {
      WaitAsync<0>();
      __syncwarp();
      start();
    }
  }
  rows.Check();
  const int end = min(rows.n, begin + part_rows), n_parts = static_cast<int>(CeilDiv(rows.n, part_rows));
  if (part >= n_parts) {
    WaitAsync<0>();
    return;
  }
  ring.Fill(end);
  SplitQueries<kDim, kTiles>(a.q + entry * a.q_stride + rows.head * a.group * kDim, a.group, shared.q);
  __syncthreads();
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int g = threadIdx.x % kWarp / 4;
  WarpState<kDim, kTiles> state;
#pragma unroll 1
  for (int step = 0; ring.RowOf(step) < end; ++step) {
    const int row = ring.RowOf(step) + g;
    float s[kTiles][4];
    {
      KeyStep<kDim> k;
      ring.TakeKeys(k);
      ScoreStep<kDim, kTiles>(k, shared.q, s);
    }
    ValueStep<kDim> v;
    ring.TakeValues(v);
    WeighStep<kDim, kTiles>(v, s, rows.Seen(row), rows.Seen(row + 8), scale, state);
  }
  Finish<kDim, kTiles>(a, rows, entry, part, n_parts, scale, state, shared);
}

// grid (heads, batch).
template <class T>
__global__ __launch_bounds__(kPlainThreads) void AttendPlainRows(const __grid_constant__ DecodeArgs a) {
  extern __shared__ float floats[];
  const int entry = blockIdx.y, d = a.cache.d;
  const int slot = a.cache.slots[entry];
  const Rows rows(a, entry, blockIdx.x, slot, a.cache.Length(slot, blockIdx.x));
  rows.Check();
  const PlainShared shared(floats, a.group, d);
  const float* q = a.q + entry * a.q_stride + rows.head * a.group * d;
  for (int i = threadIdx.x; i < a.group * d; i += kPlainThreads) shared.q[i] = q[i];
  auto row = [&](int i) {
    const int place = rows.Place(i);
    return place < 0 ? KvRow<T>{nullptr, nullptr} : KvRow<T>{a.cache.K<T>(place), a.cache.V<T>(place)};
  };
  AttendPlain<T>(shared, a.group, d, rows.n, row, a.out + entry * a.out_stride + rows.head * a.group * d,
                 [](int, float) {});
}

template <int kDim, int kTiles, int kRing>
void Start(const DecodeArgs& a, dim3 grid, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kDim, kTiles, kRing>);
  AllowSharedMemory(AttendParts<kDim, kTiles, kRing>);
  LaunchEarly(AttendParts<kDim, kTiles, kRing>, grid, kWarps * kWarp, kBytes, stream, a);
}
template <int kDim, int kTiles>
void Start(const DecodeArgs& a, int n_sms, cudaStream_t stream) {
  const dim3 grid(MaxParts(a.cache.heads), a.cache.heads, a.batch);
  const bool alone = int64_t{grid.x} * grid.y * grid.z <= n_sms;
  alone ? Start<kDim, kTiles, kDeepRing>(a, grid, stream)
        : Start<kDim, kTiles, kShallowRing>(a, grid, stream);
}

template <class T>
void StartPlain(const DecodeArgs& a, cudaStream_t stream) {
  const size_t bytes = PlainSharedFloats(a.group, a.cache.d) * sizeof(float);
  AllowSharedMemory(AttendPlainRows<T>);
  AttendPlainRows<T><<<dim3(a.cache.heads, a.batch), kPlainThreads, bytes, stream>>>(a);
}

}  // namespace

int64_t DecodeScratchFloats(int batch, int heads, int group, int d) {
  return int64_t{batch} * heads * MaxParts(heads) * PartFloats(group, d);
}

void DecodeAttention(const DecodeArgs& a, int n_sms, cudaStream_t stream) {
  const int d = a.cache.d;
  if (a.dtype == DType::kBF16 && (d == 64 || d == 128) && a.group <= 16) {
    if (a.group <= 8) {
      d == 64 ? Start<64, 1>(a, n_sms, stream) : Start<128, 1>(a, n_sms, stream);
    } else {
      d == 64 ? Start<64, 2>(a, n_sms, stream) : Start<128, 2>(a, n_sms, stream);
    }
  } else {
    a.dtype == DType::kBF16 ? StartPlain<Bf16>(a, stream) : StartPlain<float>(a, stream);
  }
}

}  // namespace sluice
