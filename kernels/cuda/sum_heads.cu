#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

__global__ void AddHeads(const float* scores, int64_t stride, int heads, int64_t n, float* out) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int h = 0; h < heads; ++h) sum += scores[h * stride + i];
  out[i] = sum;
}

}  // namespace

void CudaOps::SumHeads(TensorView scores, TensorView out) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(out, DType::kF32, {n}));
  if (n == 0) return;
  Begin();
  AddHeads<<<CeilDiv(n, 256), 256, 0, stream_>>>(scores.as<float>(), scores.stride[0],
                                                 static_cast<int>(heads), n, out.as<float>());
  Launched("SumHeads");
}

}  // namespace sluice
