// Role: what kernels share: checks, conversions, reductions over a warp. Threads: device functions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <initializer_list>

namespace sluice {

using Bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// What only a bug can cause. The queue's Sync() reports it, and the process must end.
#define SLUICE_DEVICE_CHECK(cond) \
  do {                            \
    if (!(cond)) __trap();        \
  } while (false)

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(Bf16 x) { return __bfloat162float(x); }

template <class T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 FromFloat<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// kPer neighbouring values that move at once, from a multiple of their size on.
template <class T, int kPer>
struct alignas(sizeof(T) * kPer) Piece {
  T v[kPer];
};

// Two values in one register, the first in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float HighBf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}
__device__ inline float WarpMax(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}

// Over a block of whole warps; every thread gets the result. shared: one float per warp. The order is fixed.
template <class WarpReduce>
__device__ float BlockReduce(float x, float* shared, float identity, WarpReduce reduce) {
  x = reduce(x);
  __syncthreads();  // the last use of `shared` is over
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  return reduce(threadIdx.x % kWarp < blockDim.x / kWarp ? shared[threadIdx.x % kWarp] : identity);
}
__device__ inline float BlockSum(float x, float* shared) { return BlockReduce(x, shared, 0, WarpSum); }
__device__ inline float BlockMax(float x, float* shared) {
  return BlockReduce(x, shared, kMinusInfinity, WarpMax);
}

// Whether rows of floats or of twice as many bf16 values move in pieces of 16 bytes.
inline bool InPieces(const void* data, std::initializer_list<int64_t> strides) {
  bool whole = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int64_t stride : strides) whole = whole && stride % 8 == 0;
  return whole;
}

__host__ __device__ constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace sluice
