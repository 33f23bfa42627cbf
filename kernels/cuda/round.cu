#include "kernels/cuda/round.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"

namespace sluice {
namespace {

// One thread 8 values of a row. aligned: rows of x start at 16 bytes.
__global__ void Round8(const float* x, int64_t x_stride, int64_t n, int64_t cols, bool aligned, uint4* out,
                       int64_t out_stride8) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = at / out_stride8, c = at % out_stride8 * 8;
  if (row >= n) return;
  const float* from = x + row * x_stride + c;
  float v[8];
  if (aligned && c + 8 <= cols) {
    reinterpret_cast<float4&>(v[0]) = reinterpret_cast<const float4*>(from)[0];
    reinterpret_cast<float4&>(v[4]) = reinterpret_cast<const float4*>(from)[1];
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = c + j < cols ? from[j] : 0;
  }
  out[at] =
      make_uint4(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7]));
}

}  // namespace

void RoundToBf16Rows(const float* x, int64_t x_stride, int64_t n, int64_t cols, void* out, int64_t out_stride,
                     cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % 4 == 0;
  LaunchEarly(Round8, CeilDiv(n * (out_stride / 8), 256), 256, 0, stream, x, x_stride, n, cols, aligned,
              static_cast<uint4*>(out), out_stride / 8);
}

}  // namespace sluice
