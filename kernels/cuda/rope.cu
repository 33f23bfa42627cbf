#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// One thread a pair (i, i + d/2) of a head of a row. shift: null, or [heads, d].
__global__ void RotatePairs(float* x, int64_t row_stride, int64_t head_stride, int64_t n, int heads, int half,
                            const int32_t* positions, const float* cos_sin, int64_t table_stride,
                            int64_t context, const float* shift, int64_t shift_stride) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = at / (heads * half);
  if (row >= n) return;
  const int rest = static_cast<int>(at % (heads * half)), head = rest / half, i = rest % half;
  const int32_t position = positions[row];
  SLUICE_DEVICE_CHECK(position >= 0 && position < context);
  const float c = cos_sin[position * table_stride + i], s = cos_sin[position * table_stride + half + i];
  float* p = x + row * row_stride + head * head_stride;
  const float a = p[i], b = p[half + i];
  const float* less = shift + head * shift_stride;
  p[i] = a * c - b * s - (shift == nullptr ? 0 : less[i]);
  p[half + i] = b * c + a * s - (shift == nullptr ? 0 : less[half + i]);
}

}  // namespace

void CudaOps::Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) {
  CheckRope(x, positions, cos_sin, shift);
  const int64_t n = x.shape[0], heads = x.shape[1], d = x.shape[2], context = cos_sin.shape[0];
  if (n == 0) return;
  Begin();
  LaunchEarly(RotatePairs, CeilDiv(n * heads * d / 2, 256), 256, 0, stream_, x.as<float>(), x.stride[0],
              x.stride[1], n, static_cast<int>(heads), static_cast<int>(d / 2), positions.as<int32_t>(),
              cos_sin.as<float>(), cos_sin.stride[0], context, shift.as<float>(), shift.stride[0]);
  Launched("Rope");
}

}  // namespace sluice
