#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kThreads = 256;

// grid (columns / (kPer * kThreads), n).
template <class T, int kPer>
__global__ void Gate(const float* gate_up, int64_t in_stride, int c, T* out, int64_t out_stride) {
  LetSuccessorStart();
  WaitForPredecessor();
  const int i = (blockIdx.x * kThreads + threadIdx.x) * kPer;
  if (i >= c) return;
  const float* row = gate_up + blockIdx.y * in_stride + i;
  const auto gate = *reinterpret_cast<const Piece<float, kPer>*>(row);
  const auto up = *reinterpret_cast<const Piece<float, kPer>*>(row + c);
  Piece<T, kPer> y;
#pragma unroll
  for (int j = 0; j < kPer; ++j) y.v[j] = FromFloat<T>(gate.v[j] / (1 + expf(-gate.v[j])) * up.v[j]);
  *reinterpret_cast<Piece<T, kPer>*>(out + blockIdx.y * out_stride + i) = y;
}

template <class T>
void Start(const TensorView& gate_up, const TensorView& out, cudaStream_t stream) {
  const int64_t n = out.shape[0], c = out.shape[1];
  const bool wide = InPieces(gate_up.data, {c, gate_up.stride[0]}) && InPieces(out.data, {out.stride[0]});
  constexpr int64_t kRows = 65535;  // the grid's second dimension
  for (int64_t row = 0; row < n; row += kRows) {
    const unsigned rows = static_cast<unsigned>(n - row < kRows ? n - row : kRows);
    LaunchEarly(wide ? Gate<T, 4> : Gate<T, 1>, dim3(CeilDiv(c, (wide ? 4 : 1) * kThreads), rows), kThreads,
                0, stream, Row<float>(gate_up, row), gate_up.stride[0], static_cast<int>(c), Row<T>(out, row),
                out.stride[0]);
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
