#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (n, heads). A block per row: sums its squares, then scales it. The order of the sum depends on c only.
__global__ void NormRows(const float* x, int64_t x_row, int64_t x_head, const float* weight, float eps, int c,
                         float* out, int64_t out_row, int64_t out_head) {
  __shared__ float sums[kWarp];
  LetSuccessorStart();
  WaitForPredecessor();
  const float* from = x + blockIdx.x * x_row + blockIdx.y * x_head;
  float* to = out + blockIdx.x * out_row + blockIdx.y * out_head;
  float squares = 0;
  for (int i = threadIdx.x; i < c; i += blockDim.x) squares += from[i] * from[i];
  const float scale = 1 / sqrtf(BlockSum(squares, sums) / c + eps);
  for (int i = threadIdx.x; i < c; i += blockDim.x) to[i] = from[i] * scale * weight[i];
}

}  // namespace

void CudaOps::RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) {
  SLUICE_CHECK(x.rank == 2 || x.rank == 3);
  const int64_t c = x.shape[x.rank - 1], n = x.shape[0], heads = x.rank == 3 ? x.shape[1] : 1;
  if (x.rank == 2) {
    SLUICE_CHECK(Is(x, DType::kF32, {n, c}) && Is(out, DType::kF32, {n, c}));
  } else {
    SLUICE_CHECK(Is(x, DType::kF32, {n, heads, c}) && Is(out, DType::kF32, {n, heads, c}));
  }
  SLUICE_CHECK(Is(weight, DType::kF32, {c}));
  if (n == 0) return;
  Begin();
  const int threads = static_cast<int>(std::clamp<int64_t>(CeilDiv(CeilDiv(c, 4), kWarp), 1, 32)) * kWarp;
  LaunchEarly(NormRows, dim3(n, heads), threads, 0, stream_, x.as<float>(), x.stride[0],
              x.rank == 3 ? x.stride[1] : 0, weight.as<float>(), eps, static_cast<int>(c), out.as<float>(),
              out.stride[0], x.rank == 3 ? out.stride[1] : 0);
  Launched("RmsNorm");
}

}  // namespace sluice
