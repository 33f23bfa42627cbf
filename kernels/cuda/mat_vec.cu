#include "kernels/cuda/mat_vec.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace sluice {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kOutputs = 16;  // of a tile: the M of a tensor core product
constexpr int kColumns = 128, kPieces = kColumns / 8;
// Of a warp's ring: each holds 16 rows of 128 columns. Deep rings where x leaves room for them.
constexpr int kDeepSlots = 5, kShallowSlots = 4;
constexpr int kSlotBytes = kOutputs * kColumns * 2;
__host__ __device__ constexpr int RingBytes(int slots) { return kWarps * slots * kSlotBytes; }
constexpr int kTileSums = kWarps * kOutputs * kMatVecRows;  // floats

// How the columns of x are cut so that shared memory holds a chunk of it: into whole rounds of all warps.
struct Cut {
  int n_steps;      // column steps of a row
  int chunk_steps;  // of a chunk
  int buffers;      // of sums: two, or one a tile when tiles are visited once for each chunk
  int held_stride;  // of x in shared memory; rows half the banks apart
  int rows;         // of x, that one pass over the weights takes

  __host__ __device__ int Chunks() const { return static_cast<int>(CeilDiv(n_steps, chunk_steps)); }
};

// Columns c .. c + 7 of a row of x, zeros past the end.
template <class T>
struct X8;
template <>
struct X8<float> {
  float4 low, high;

  __device__ static X8 Load(const float* row, int c, int cols, bool aligned) {
    if (aligned && c + 8 <= cols)
      return {__ldcg(reinterpret_cast<const float4*>(row + c)),
              __ldcg(reinterpret_cast<const float4*>(row + c + 4))};
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = c + j < cols ? row[c + j] : 0;
    return {make_float4(v[0], v[1], v[2], v[3]), make_float4(v[4], v[5], v[6], v[7])};
  }
  __device__ uint4 Rounded() const {
    return make_uint4(PackBf16(low.x, low.y), PackBf16(low.z, low.w), PackBf16(high.x, high.y),
                      PackBf16(high.z, high.w));
  }
};
template <>
struct X8<Bf16> {
  uint4 values;

  __device__ static X8 Load(const Bf16* row, int c, int cols, bool) {
    return {c < cols ? __ldcg(reinterpret_cast<const uint4*>(row + c)) : make_uint4(0, 0, 0, 0)};
  }
  __device__ uint4 Rounded() const { return values; }
};

// The 16 outputs of a tile: 8 from First on and 8 from `gap` later on, so that a gate meets its up and a
// rotated pair meets. Blocks of 2 * gap rows lie one after another.
struct Halves {
  int gap;
  __host__ __device__ explicit Halves(const MatVecArgs& a)
      : gap(a.gated != nullptr ? a.rows / 2
            : a.turned > 0     ? a.head_dim / 2
                               : 8) {}
  __device__ int First(int tile) const {
    const int per = gap / 8;
    return tile / per * (2 * gap) + tile % per * 8;
  }
};

// A warp's way through the weights: chunks, in each all tiles of its block, of each every eighth step.
struct Walk {
  const Cut cut;
  const Halves halves;
  const int warp, n_tiles;
  int chunk = 0, tile, step, first;  // first: row of the tile

  __device__ Walk(const Cut& c, const Halves& h, int tiles)
      : cut(c),
        halves(h),
        warp(threadIdx.x / kWarp),
        n_tiles(tiles),
        tile(blockIdx.x),
        step(warp),
        first(h.First(tile)) {
    SkipEmpty();
  }
  __device__ int End() const { return min((chunk + 1) * cut.chunk_steps, cut.n_steps); }
  __device__ bool done() const { return chunk >= cut.Chunks(); }
  __device__ void Next() {
    step += kWarps;
    if (step < End()) return;
    tile += gridDim.x;
    if (tile >= n_tiles) {
      tile = blockIdx.x;
      ++chunk;
    }
    first = halves.First(tile);
    step = chunk * cut.chunk_steps + warp;
    SkipEmpty();
  }
  __device__ void SkipEmpty() {  // only the last chunk can have too few steps for a warp
    if (!done() && step >= End()) chunk = cut.Chunks();
  }
};

// Piece p of a row lies at p ^ (4, for odd rows): lanes of a fragment meet no bank twice.
__device__ uint32_t PieceOffset(int row, int piece) {
  return row * (kColumns * 2) + ((piece ^ ((row & 1) << 2)) << 4);
}

// Output o of a tile, for row i of x. Lanes o and o ^ 8 hold a gate and its up, or a pair that rotates.
__device__ void Store(const MatVecArgs& a, const Halves& halves, int tile, int o, int i, bool valid,
                      float y) {
  const int row = halves.First(tile) + o % 8 + (o < 8 ? 0 : halves.gap);
  valid = valid && row < a.rows;
  if (valid && a.bias != nullptr) y += a.bias[row];
  const float other = __shfl_xor_sync(kAllLanes, y, 8);
  if (!valid) return;
  if (a.gated != nullptr) {
    if (o < 8)
      static_cast<Bf16*>(a.gated)[i * a.gated_stride + row] = FromFloat<Bf16>(y / (1 + expf(-y)) * other);
    return;
  }
  if (row < a.turned) {
    const int32_t position = a.positions[i];
    SLUICE_DEVICE_CHECK(position >= 0 && position < a.context);
    const int head = row / a.head_dim, at = row % a.head_dim;
    const float* table = a.cos_sin + position * a.cos_sin_stride + at % halves.gap;
    y = y * table[0] + (o < 8 ? -other : other) * table[halves.gap];
    if (a.shift != nullptr) y -= a.shift[head * a.shift_stride + at];
  }
  float* to = a.out + i * a.out_stride + row;
  *to = a.accumulate ? *to + y : y;
}

// grid (at most one block a multiprocessor, passes). A block takes tiles of 16 outputs in turn, for up to 8
// rows of x; its warps take the tile's steps of 128 columns in turn and their sums are added in order. A warp
// streams weights through its own ring in shared memory, 256 bytes of two rows at a time, across tiles, so
// that memory never waits for sums. Weights are the A of the product, x the B. Both sides permute the columns
// of a block of 32 in the same way, so that a lane's share of a row is 16 bytes: of the two products of 16
// columns, the first takes words x and y of lane t, the second z and w.
template <class T, int kSlots>
__global__ __launch_bounds__(kThreads, 1) void MultiplyFewRows(const __grid_constant__ MatVecArgs a,
                                                               const __grid_constant__ Cut cut,
                                                               bool aligned) {
  extern __shared__ __align__(16) char memory[];
  LetSuccessorStart();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int x0 = blockIdx.y * cut.rows, n = min(cut.rows, a.n - x0);
  const int n_tiles = static_cast<int>(CeilDiv(a.rows, kOutputs)), chunks = cut.Chunks();
  const char* ring = memory + warp * (kSlots * kSlotBytes);
  float* sums = reinterpret_cast<float*>(memory + RingBytes(kSlots));
  Bf16* held = reinterpret_cast<Bf16*>(sums + cut.buffers * kTileSums);

  const Halves halves(a);
  Walk ahead(cut, halves, n_tiles);
  const Bf16* weights = static_cast<const Bf16*>(a.w);
  auto fetch = [&](int slot) {  // one group of copies, possibly empty
    if (!ahead.done()) {
      const uint32_t to = SharedAddress(ring) + slot * kSlotBytes;
      const int column = ahead.step * kColumns + lane % kPieces * 8;
#pragma unroll
      for (int i = 0; i < kOutputs / 2; ++i) {  // rows past the end read the last one and are not stored
        const int row = 2 * i + lane / kPieces, half = i < kOutputs / 4 ? 0 : halves.gap - 8;
        const int from = min(ahead.first + half + row, a.rows - 1);
        CopyAsync16(to + PieceOffset(row, lane % kPieces),
                    weights + from * a.w_stride + (column < a.w_stride ? column : 0), column < a.w_stride);
      }
      ahead.Next();
    }
    CommitAsync();
  };
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) fetch(i);
  WaitForPredecessor();  // weights never change, x does

  int slot = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int begin = chunk * cut.chunk_steps, end = min(begin + cut.chunk_steps, cut.n_steps);
    if (chunk > 0) __syncthreads();  // the last chunk of x has been read
    for (int row = 0; row < n; ++row) {
      const T* from = static_cast<const T*>(a.x) + (x0 + row) * a.x_stride;
      for (int i = threadIdx.x; i < (end - begin) * kPieces; i += 4 * kThreads) {
        X8<T> v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (const int p = i + j * kThreads; p < (end - begin) * kPieces)
            v[j] = X8<T>::Load(from, begin * kColumns + p * 8, a.cols, aligned);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (const int p = i + j * kThreads; p < (end - begin) * kPieces)
            *reinterpret_cast<uint4*>(held + row * cut.held_stride + p * 8) = v[j].Rounded();
      }
    }
    __syncthreads();
    // Of a tile's sums this thread finishes output o of row i.
    const int i = threadIdx.x / kOutputs, o = threadIdx.x % kOutputs;

    int buffer = 0;
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, buffer = (buffer + 1) % cut.buffers) {
      float* own = sums + buffer * kTileSums + warp * (kOutputs * kMatVecRows);
      float acc[4] = {};
      if (chunk > 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[j] = own[(2 * t + j % 2) * kOutputs + g + j / 2 * 8];
      }
      for (int step = begin + warp; step < end; step += kWarps) {
        WaitAsync<kSlots - 2>();
        __syncwarp();  // all lanes' copies are here, and all have read the slot before
        fetch((slot + kSlots - 1) % kSlots);
        const char* piece = ring + slot * kSlotBytes;
        const Bf16* x = held + g * cut.held_stride + (step - begin) * kColumns + 8 * t;
#pragma unroll
        for (int b = 0; b < kColumns / 32; ++b) {
          const uint4 low = *reinterpret_cast<const uint4*>(piece + PieceOffset(g, 4 * b + t));
          const uint4 high = *reinterpret_cast<const uint4*>(piece + PieceOffset(g + 8, 4 * b + t));
          const uint4 v = g < n ? *reinterpret_cast<const uint4*>(x + 32 * b) : make_uint4(0, 0, 0, 0);
          MmaBf16(acc, low.x, high.x, low.y, high.y, v.x, v.y);
          MmaBf16(acc, low.z, high.z, low.w, high.w, v.z, v.w);
        }
        slot = (slot + 1) % kSlots;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) own[(2 * t + j % 2) * kOutputs + g + j / 2 * 8] = acc[j];
      if (chunk + 1 < chunks) continue;
      __syncthreads();                 // with two buffers, one barrier a tile is enough
      if (i >= kMatVecRows) continue;  // whole warps
      float y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        y += sums[buffer * kTileSums + w * (kOutputs * kMatVecRows) + threadIdx.x];
      Store(a, halves, tile, o, x0 + i, i < n, y);
    }
  }
  WaitAsync<0>();
}

}  // namespace

void MatVec(const MatVecArgs& a, int n_sms, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.x_stride % 4 == 0;
  const int64_t tiles = CeilDiv(a.rows, kOutputs), blocks = tiles < n_sms ? tiles : n_sms;
  const int tiles_of_a_block = static_cast<int>(CeilDiv(tiles, blocks));
  Cut cut;
  cut.n_steps = cut.chunk_steps = static_cast<int>(CeilDiv(a.cols, kColumns));
  cut.buffers = 2;
  cut.rows = a.n < kMatVecRows ? a.n : kMatVecRows;
  auto bytes = [&](int slots) {
    cut.held_stride = cut.chunk_steps * kColumns + 32;
    return RingBytes(slots) + cut.buffers * kTileSums * 4 + cut.rows * cut.held_stride * 2;
  };
  const int slots = bytes(kDeepSlots) <= kMostSharedBytes ? kDeepSlots : kShallowSlots;
  // Long rows in chunks while the sums of all tiles fit, else fewer rows of x a pass.
  constexpr int kMostBuffers = 8;
  while (bytes(slots) > kMostSharedBytes && tiles_of_a_block > kMostBuffers && cut.rows > 1)
    cut.rows = (cut.rows + 1) / 2;
  if (bytes(slots) > kMostSharedBytes) {
    cut.buffers = tiles_of_a_block < 2 ? 2 : tiles_of_a_block;
    cut.chunk_steps = cut.chunk_steps / kWarps * kWarps;
    while (cut.chunk_steps > kWarps && bytes(slots) > kMostSharedBytes) cut.chunk_steps -= kWarps;
  }
  const int shared = bytes(slots);
  auto start = [&](auto kernel) {
    AllowSharedMemory(kernel);
    LaunchEarly(kernel, dim3(blocks, CeilDiv(a.n, cut.rows)), kThreads, shared, stream, a, cut, aligned);
  };
  if (slots == kDeepSlots) {
    a.x_is_bf16 ? start(MultiplyFewRows<Bf16, kDeepSlots>) : start(MultiplyFewRows<float, kDeepSlots>);
  } else {
    a.x_is_bf16 ? start(MultiplyFewRows<Bf16, kShallowSlots>) : start(MultiplyFewRows<float, kShallowSlots>);
  }
}

}  // namespace sluice
