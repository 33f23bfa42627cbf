#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (n / 256, heads), one thread an output: windows of neighbours overlap in L1.
template <bool kMaximum>
__global__ void PoolWindows(const float* scores, int64_t stride, int64_t n, int width, float* out,
                            int64_t out_stride) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const float* x = scores + blockIdx.y * stride;
  const int64_t begin = max(i - width / 2, int64_t{0}), end = min(i + width / 2 + 1, n);
  float y = kMaximum ? kMinusInfinity : 0;
  for (int64_t j = begin; j < end; ++j) y = kMaximum ? fmaxf(y, x[j]) : y + x[j];
  out[blockIdx.y * out_stride + i] = kMaximum ? y : y / static_cast<float>(width);
}

// weights[d] = exp(-d / reach), d < n.
__global__ void FadingWeights(float reach, int n, float* weights) {
  const int d = blockIdx.x * blockDim.x + threadIdx.x;
  if (d < n) weights[d] = static_cast<float>(exp(-static_cast<double>(d) / reach));
}

// As PoolWindows: the best of every row in reach, faded by its distance.
__global__ void Fade(const float* scores, int64_t stride, int64_t n, const float* after, int n_after,
                     const float* before, int n_before, float* out, int64_t out_stride) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const float* x = scores + blockIdx.y * stride;
  const int left = static_cast<int>(min(int64_t{n_after}, i + 1));
  const int right = static_cast<int>(min(int64_t{n_before}, n - i));
  float y = kMinusInfinity;
#pragma unroll 4
  for (int d = 0; d < left; ++d) y = fmaxf(y, x[i - d] * after[d]);
#pragma unroll 4
  for (int d = 1; d < right; ++d) y = fmaxf(y, x[i + d] * before[d]);
  out[blockIdx.y * out_stride + i] = y;
}

}  // namespace

void CudaOps::Pool(TensorView scores, const Pooling& pooling, TensorView out) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(out, DType::kF32, {heads, n}));
  if (n == 0) return;
  Begin();
  const dim3 grid(CeilDiv(n, 256), heads);
  if (pooling.kind == Pooling::kFading) {
    SLUICE_CHECK(pooling.after > 0 && pooling.before > 0);
    // No row is further away than n - 1.
    auto weights_of = [n](float reach) {
      return static_cast<int>(32.0 * reach < n - 1 ? 32.0 * reach : n - 1) + 1;
    };
    const int n_after = weights_of(pooling.after), n_before = weights_of(pooling.before);
    float* after = reinterpret_cast<float*>(Reserve((n_after + n_before) * sizeof(float)));
    if (after == nullptr) return;
    float* before = after + n_after;
    FadingWeights<<<CeilDiv(n_after, 256), 256, 0, stream_>>>(pooling.after, n_after, after);
    FadingWeights<<<CeilDiv(n_before, 256), 256, 0, stream_>>>(pooling.before, n_before, before);
    Fade<<<grid, 256, 0, stream_>>>(scores.as<float>(), scores.stride[0], n, after, n_after, before, n_before,
                                    out.as<float>(), out.stride[0]);
  } else {
    SLUICE_CHECK(pooling.kernel >= 1 && pooling.kernel % 2 == 1);
    auto kernel = pooling.kind == Pooling::kMax ? &PoolWindows<true> : &PoolWindows<false>;
    kernel<<<grid, 256, 0, stream_>>>(scores.as<float>(), scores.stride[0], n, pooling.kernel,
                                      out.as<float>(), out.stride[0]);
  }
  Launched("Pool");
}

}  // namespace sluice
