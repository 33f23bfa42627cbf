#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kHeld = 4;  // pieces of four columns that a thread keeps

__device__ void Store4(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ void Store4(Bf16* to, float4 v) {
  *reinterpret_cast<uint2*>(to) = make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
}

// grid (n, heads). A block per row: sums its squares, then scales it. The order of the sum depends on c only.
template <class T>
__global__ void NormRows(const float* x, int64_t x_row, int64_t x_head, const float* weight, float eps, int c,
                         T* out, int64_t out_row, int64_t out_head) {
  __shared__ float sums[kWarp];
  LetSuccessorStart();
  WaitForPredecessor();
  const float* from = x + blockIdx.x * x_row + blockIdx.y * x_head;
  T* to = out + blockIdx.x * out_row + blockIdx.y * out_head;
  float squares = 0;
  for (int i = threadIdx.x; i < c; i += blockDim.x) squares += from[i] * from[i];
  const float scale = 1 / sqrtf(BlockSum(squares, sums) / c + eps);
  for (int i = threadIdx.x; i < c; i += blockDim.x) to[i] = FromFloat<T>(from[i] * scale * weight[i]);
}

// As NormRows, for whole pieces of 16 bytes and rows of up to kHeld pieces a thread: x is read once, and the
// weights before it is there.
template <class T>
__global__ void NormHeldRows(const float* x, int64_t x_row, int64_t x_head, const float* weight, float eps,
                             int c, T* out, int64_t out_row, int64_t out_head) {
  __shared__ float sums[kWarp];
  LetSuccessorStart();
  const auto* from = reinterpret_cast<const float4*>(x + blockIdx.x * x_row + blockIdx.y * x_head);
  T* to = out + blockIdx.x * out_row + blockIdx.y * out_head;
  float4 w[kHeld], v[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (const int i = threadIdx.x + j * blockDim.x; i < c / 4)
      w[j] = reinterpret_cast<const float4*>(weight)[i];
  WaitForPredecessor();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    v[j] = i < c / 4 ? from[i] : make_float4(0, 0, 0, 0);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    squares += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
  const float scale = 1 / sqrtf(BlockSum(squares, sums) / c + eps);
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (const int i = threadIdx.x + j * blockDim.x; i < c / 4)
      Store4(to + 4 * i, make_float4(v[j].x * scale * w[j].x, v[j].y * scale * w[j].y,
                                     v[j].z * scale * w[j].z, v[j].w * scale * w[j].w));
}

bool InPieces(const TensorView& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride[0] % 4 == 0 &&
         (x.rank == 2 || x.stride[1] % 4 == 0);
}

template <class T>
void Start(const TensorView& x, const TensorView& weight, float eps, const TensorView& out,
           cudaStream_t stream) {
  const int64_t c = x.shape[x.rank - 1], n = x.shape[0], heads = x.rank == 3 ? x.shape[1] : 1;
  // A thread holds kHeld pieces, so that a multiprocessor has many rows on their way.
  const int threads = static_cast<int>(std::clamp<int64_t>(CeilDiv(c, 4 * kHeld * kWarp), 1, 32)) * kWarp;
  const bool held = c % 4 == 0 && c <= 4 * kHeld * threads && InPieces(x) && InPieces(out) &&
                    reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
  LaunchEarly(held ? NormHeldRows<T> : NormRows<T>, dim3(n, heads), threads, 0, stream, x.as<float>(),
              x.stride[0], x.rank == 3 ? x.stride[1] : 0, weight.as<float>(), eps, static_cast<int>(c),
              out.as<T>(), out.stride[0], x.rank == 3 ? out.stride[1] : 0);
}

}  // namespace

void CudaOps::RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) {
  SLUICE_CHECK(x.rank == 2 || x.rank == 3);
  const int64_t c = x.shape[x.rank - 1], n = x.shape[0], heads = x.rank == 3 ? x.shape[1] : 1;
  if (x.rank == 2) {
    SLUICE_CHECK(Is(x, DType::kF32, {n, c}) && Is(out, out.dtype, {n, c}) && IsProductInput(out.dtype));
  } else {
    SLUICE_CHECK(Is(x, DType::kF32, {n, heads, c}) && Is(out, DType::kF32, {n, heads, c}));
  }
  SLUICE_CHECK(Is(weight, DType::kF32, {c}));
  if (n == 0) return;
  Begin();
  out.dtype == DType::kBF16 ? Start<Bf16>(x, weight, eps, out, stream_)
                            : Start<float>(x, weight, eps, out, stream_);
  Launched("RmsNorm");
}

}  // namespace sluice
