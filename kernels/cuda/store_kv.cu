#include <algorithm>

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

constexpr int kRows = 4;  // of a block: a thread has a piece of each on its way

// grid (n / kRows, 2): K, then V. A thread rounds kPer values at a time.
template <class T, int kPer>
__global__ void RoundRows(Side k, Side v, int64_t n, int heads, int d) {
  const Side& side = blockIdx.y == 0 ? k : v;
  const int64_t first = blockIdx.x * int64_t{kRows};
  const int each = d / kPer;
  for (int at = threadIdx.x; at < heads * each; at += blockDim.x) {
    const int head = at / each, i = at % each * kPer;
    const float* from = side.from + head * side.from_head + i;
    T* to = static_cast<T*>(side.to) + head * side.to_head + i;
    Piece<float, kPer> x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      x[r] = *reinterpret_cast<const Piece<float, kPer>*>(from + min(first + r, n - 1) * side.from_row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Piece<T, kPer> y;
#pragma unroll
      for (int j = 0; j < kPer; ++j) y.v[j] = FromFloat<T>(x[r].v[j]);
      if (first + r < n) *reinterpret_cast<Piece<T, kPer>*>(to + (first + r) * side.to_row) = y;
    }
  }
}

bool Wide(const TensorView& view) {
  return InPieces(view.data, {view.stride[0], view.stride[1], view.shape[2]});
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
  const bool wide = Wide(k) && Wide(v) && Wide(k_out) && Wide(v_out);
  const int64_t pieces = heads * d / (wide ? 4 : 1);
  const int threads = static_cast<int>(std::min<int64_t>(CeilDiv(pieces, kWarp), 8)) * kWarp;
  auto start = [&](auto kernel) {
    kernel<<<dim3(CeilDiv(n, kRows), 2), threads, 0, stream_>>>(side(k, k_out), side(v, v_out), n,
                                                                static_cast<int>(heads), static_cast<int>(d));
  };
  if (k_out.dtype == DType::kBF16) {
    wide ? start(RoundRows<Bf16, 4>) : start(RoundRows<Bf16, 1>);
  } else {
    wide ? start(RoundRows<float, 4>) : start(RoundRows<float, 1>);
  }
  Launched("StoreKv");
}

}  // namespace sluice
