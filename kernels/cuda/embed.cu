#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_matrix.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid n. Row ids[i] of the table widened to f32.
__global__ void EmbedRows(const Bf16* table, int64_t stride, int64_t rows, int cols, const int32_t* ids,
                          float* out, int64_t out_stride) {
  LetSuccessorStart();
  const int32_t id = ids[blockIdx.x];
  SLUICE_DEVICE_CHECK(id >= 0 && id < rows);
  const Bf16* from = table + id * stride;
  float* to = out + blockIdx.x * out_stride;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) to[c] = __bfloat162float(from[c]);
}

}  // namespace

void CudaOps::Embed(const Matrix& table, TensorView ids, TensorView out) {
  const auto& rows = static_cast<const RowMatrix&>(table);
  const int64_t n = ids.shape[0];
  SLUICE_CHECK(Is(ids, DType::kI32, {n}) && Is(out, DType::kF32, {n, table.cols()}));
  if (n == 0) return;
  Begin();
  EmbedRows<<<n, 256, 0, stream_>>>(static_cast<const Bf16*>(rows.data()), rows.stride(), rows.rows(),
                                    static_cast<int>(rows.cols()), ids.as<int32_t>(), out.as<float>(),
                                    out.stride[0]);
  Launched("Embed");
}

}  // namespace sluice
