#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kSelectThreads = 1024, kSelectPer = 8;

// grid heads.
__global__ __launch_bounds__(kSelectThreads) void SelectRows(const float* scores, int64_t stride, int n,
                                                             int k, int tail, int32_t* rows,
                                                             int64_t rows_stride) {
  __shared__ SelectShared<kSelectThreads> shared;
  const float* x = scores + blockIdx.x * stride;
  int32_t* to = rows + blockIdx.x * rows_stride;
  if (k > 0) {
    const Items items = {n, 1, 1};
    auto key = [x](int i) { return OrderedKey(x[i]); };
    const Cut cut = FindCut<kSelectThreads, kSelectPer>(items, k, 0, ~0u, key, shared);
    EmitInOrder(
        items, cut, key, [to](int i, int, int before) { to[before] = i; }, shared);
  }
  for (int i = threadIdx.x; i < tail; i += kSelectThreads) to[k + i] = n + i;
}

}  // namespace

void CudaOps::SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(k >= 0 && k <= n && tail >= 0);
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(rows, DType::kI32, {heads, k + tail}));
  if (k + tail == 0) return;
  Begin();
  SelectRows<<<heads, kSelectThreads, 0, stream_>>>(scores.as<float>(), scores.stride[0], static_cast<int>(n),
                                                    k, tail, rows.as<int32_t>(), rows.stride[0]);
  Launched("SelectTop");
}

}  // namespace sluice
