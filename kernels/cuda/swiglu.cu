#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (columns / 256, n).
template <class T>
__global__ void Gate(const float* gate_up, int64_t in_stride, int c, T* out, int64_t out_stride) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= c) return;
  const float* row = gate_up + blockIdx.y * in_stride;
  const float gate = row[i];
  out[blockIdx.y * out_stride + i] = FromFloat<T>(gate / (1 + expf(-gate)) * row[c + i]);
}

template <class T>
void Start(const TensorView& gate_up, const TensorView& out, cudaStream_t stream) {
  const int64_t n = out.shape[0], c = out.shape[1];
  constexpr int64_t kRows = 65535;  // the grid's second dimension
  for (int64_t row = 0; row < n; row += kRows) {
    const unsigned rows = static_cast<unsigned>(n - row < kRows ? n - row : kRows);
    LaunchEarly(Gate<T>, dim3(CeilDiv(c, 256), rows), 256, 0, stream, Row<float>(gate_up, row),
                gate_up.stride[0], static_cast<int>(c), Row<T>(out, row), out.stride[0]);
  }
}

}  // namespace

void CudaOps::SwiGlu(TensorView gate_up, TensorView out) {
  const int64_t n = out.shape[0], c = out.shape[1];
  SLUICE_CHECK(Is(gate_up, DType::kF32, {n, 2 * c}) && Is(out, out.dtype, {n, c}) &&
               IsProductInput(out.dtype));
  Begin();
  out.dtype == DType::kBF16 ? Start<Bf16>(gate_up, out, stream_) : Start<float>(gate_up, out, stream_);
  Launched("SwiGlu");
}

}  // namespace sluice
