#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid n. A thread turns kPer pairs (i, i + d/2) of a head at a time. shift: null, or [heads, d].
template <int kPer>
__global__ void RotatePairs(float* x, int64_t row_stride, int64_t head_stride, int heads, int half,
                            const int32_t* positions, const float* cos_sin, int64_t table_stride,
                            int64_t context, const float* shift, int64_t shift_stride) {
  using Values = Piece<float, kPer>;
  LetSuccessorStart();
  WaitForPredecessor();
  const int32_t position = positions[blockIdx.x];
  SLUICE_DEVICE_CHECK(position >= 0 && position < context);
  const int each = half / kPer;
  for (int at = threadIdx.x; at < heads * each; at += blockDim.x) {
    const int head = at / each, i = at % each * kPer;
    const float* table = cos_sin + position * table_stride + i;
    const Values c = *reinterpret_cast<const Values*>(table),
                 s = *reinterpret_cast<const Values*>(table + half);
    auto* p = reinterpret_cast<Values*>(x + blockIdx.x * row_stride + head * head_stride + i);
    auto* q = reinterpret_cast<Values*>(x + blockIdx.x * row_stride + head * head_stride + half + i);
    Values a = *p, b = *q;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const float first = a.v[j] * c.v[j] - b.v[j] * s.v[j], second = b.v[j] * c.v[j] + a.v[j] * s.v[j];
      const float* less = shift + head * shift_stride + i + j;
      a.v[j] = first - (shift == nullptr ? 0 : less[0]);
      b.v[j] = second - (shift == nullptr ? 0 : less[half]);
    }
    *p = a;
    *q = b;
  }
}

}  // namespace

void CudaOps::Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) {
  CheckRope(x, positions, cos_sin, shift);
  const int64_t n = x.shape[0], heads = x.shape[1], d = x.shape[2], context = cos_sin.shape[0];
  if (n == 0) return;
  Begin();
  const bool wide =
      InPieces(x.data, {x.stride[0], x.stride[1], d}) && InPieces(cos_sin.data, {cos_sin.stride[0]});
  const int64_t pieces = heads * d / 2 / (wide ? 4 : 1);
  const int threads = static_cast<int>(std::min<int64_t>(CeilDiv(pieces, kWarp), 20)) * kWarp;
  LaunchEarly(wide ? RotatePairs<4> : RotatePairs<1>, n, threads, 0, stream_, x.as<float>(), x.stride[0],
              x.stride[1], static_cast<int>(heads), static_cast<int>(d / 2), positions.as<int32_t>(),
              cos_sin.as<float>(), cos_sin.stride[0], context, shift.as<float>(), shift.stride[0]);
  Launched("Rope");
}

}  // namespace sluice
