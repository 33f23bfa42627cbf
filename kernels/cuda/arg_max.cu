#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

using Key = unsigned long long;  // orders (value, lower index first); 0: below every finite value

constexpr Key kNotFinite = ~Key{0};
constexpr int kThreads = 256;
constexpr int kParts = 64;  // blocks of a row

__device__ Key KeyOf(float x, int64_t column) {
  if (isnan(x) || x == -kMinusInfinity) return kNotFinite;
  if (x == kMinusInfinity) return 0;
  const uint32_t bits = __float_as_uint(x + 0.f);  // -0 equals 0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return Key{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(column));
}

__device__ Key BlockMaxKey(Key key, Key* shared) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, lane));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = key;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) key = max(key, shared[w]);
  return key;
}

// grid [kParts, rows]. parts [rows, kParts]; the last block of a row has the last word.
__global__ void BestOfRow(const float* x, int64_t stride, int64_t n, Key* parts, unsigned* counters,
                          int32_t* out) {
  __shared__ Key shared[kThreads / kWarp];
  __shared__ bool last;
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t row = blockIdx.y;
  Key best = 0;
#pragma unroll 8
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += kParts * kThreads)
    best = max(best, KeyOf(x[row * stride + i], i));
  best = BlockMaxKey(best, shared);
  if (threadIdx.x == 0) {
    parts[row * kParts + blockIdx.x] = best;
    __threadfence();
    last = atomicAdd(&counters[row], 1) == kParts - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  best = BlockMaxKey(threadIdx.x < kParts ? __ldcg(&parts[row * kParts + threadIdx.x]) : 0, shared);
  if (threadIdx.x != 0) return;
  out[row] =
      best == 0 || best == kNotFinite ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
  counters[row] = 0;
}

}  // namespace

void CudaOps::ArgMax(TensorView x, TensorView out) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  SLUICE_CHECK(Is(x, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}));
  if (rows == 0) return;
  Begin();
  auto* parts = reinterpret_cast<Key*>(Reserve(rows * kParts * sizeof(Key)));
  unsigned* counters = Counters(rows);
  if (parts == nullptr || counters == nullptr) return;
  LaunchEarly(BestOfRow, dim3(kParts, static_cast<unsigned>(rows)), kThreads, 0, stream_, x.as<float>(),
              x.stride[0], n, parts, counters, out.as<int32_t>());
  Launched("ArgMax");
}

}  // namespace sluice
