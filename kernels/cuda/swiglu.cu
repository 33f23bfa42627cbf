#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (columns / 256, n).
__global__ void Gate(const float* gate_up, int64_t in_stride, int c, float* out, int64_t out_stride) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= c) return;
  const float* row = gate_up + blockIdx.y * in_stride;
  const float gate = row[i];
  out[blockIdx.y * out_stride + i] = gate / (1 + expf(-gate)) * row[c + i];
}

}  // namespace

void CudaOps::SwiGlu(TensorView gate_up, TensorView out) {
  const int64_t n = out.shape[0], c = out.shape[1];
  SLUICE_CHECK(Is(gate_up, DType::kF32, {n, 2 * c}) && Is(out, DType::kF32, {n, c}));
  Begin();
  constexpr int64_t kRows = 65535;  // the grid's second dimension
  for (int64_t row = 0; row < n; row += kRows) {
    const unsigned rows = static_cast<unsigned>(n - row < kRows ? n - row : kRows);
    LaunchEarly(Gate, dim3(CeilDiv(c, 256), rows), 256, 0, stream_, Row<float>(gate_up, row),
                gate_up.stride[0], static_cast<int>(c), Row<float>(out, row), out.stride[0]);
  }
  Launched("SwiGlu");
}

}  // namespace sluice
