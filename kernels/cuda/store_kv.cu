#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

struct Side {
  const float* from;
  int64_t from_row, from_head;
  void* to;
  int64_t to_head, to_row;
};

// grid (rows of n * heads * d / 256, 2): K and V. One thread a value; a warp reads and writes within a row.
template <class T>
__global__ void RoundRows(Side k, Side v, int64_t n, int heads, int d) {
  const Side& side = blockIdx.y == 0 ? k : v;
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = at / (heads * d);
  if (row >= n) return;
  const int rest = static_cast<int>(at % (heads * d)), head = rest / d, i = rest % d;
  static_cast<T*>(side.to)[head * side.to_head + row * side.to_row + i] =
      FromFloat<T>(side.from[row * side.from_row + head * side.from_head + i]);
}

}  // namespace

void CudaOps::StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) {
  CheckStoreKv(k, v, k_out, v_out);
  const int64_t n = k.shape[0], heads = k.shape[1], d = k.shape[2];
  if (n == 0) return;
  Begin();
  auto side = [](const TensorView& from, const TensorView& to) {
    return Side{from.as<float>(), from.stride[0], from.stride[1], to.data, to.stride[0], to.stride[1]};
  };
  const dim3 grid(CeilDiv(n * heads * d, 256), 2);
  auto kernel = k_out.dtype == DType::kBF16 ? &RoundRows<Bf16> : &RoundRows<float>;
  kernel<<<grid, 256, 0, stream_>>>(side(k, k_out), side(v, v_out), n, static_cast<int>(heads),
                                    static_cast<int>(d));
  Launched("StoreKv");
}

}  // namespace sluice
