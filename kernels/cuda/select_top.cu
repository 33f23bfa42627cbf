#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid heads.
__global__ __launch_bounds__(kSelectThreads) void SelectRows(const float* scores, int64_t stride, int n,
                                                             int k, int tail, int32_t* rows,
                                                             int64_t rows_stride) {
  __shared__ SelectShared shared;
  const float* x = scores + blockIdx.x * stride;
  int32_t* to = rows + blockIdx.x * rows_stride;
  if (k > 0) {
    SelectInOrder(
        n, k, [x](int i) { return OrderedKey(x[i]); }, [](int) { return 1; },
        [to](int i, int, int before) { to[before] = i; }, shared);
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
