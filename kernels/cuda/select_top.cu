#include "common/base/status.h"
#include "kernels/cuda/cluster_select.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (kSelectBlocks, heads), a cluster a head. A block holds the keys of successive rows of its head.
__global__ __cluster_dims__(kSelectBlocks, 1, 1)
    __launch_bounds__(kSelectThreads) void SelectRows(const float* scores, int64_t stride, int n, int k,
                                                      int tail, int32_t* rows, int64_t rows_stride,
                                                      bool held) {
  extern __shared__ uint32_t keys[];
  __shared__ ClusterSelectShared s;
  const ClusterShare share(n);
  const float* x = scores + blockIdx.y * stride + share.begin;
  int32_t* to = rows + blockIdx.y * rows_stride;
  s.Clear();
  if (held) {
#pragma unroll 8
    for (int i = threadIdx.x; i < share.own; i += kSelectThreads) keys[i] = OrderedKey(x[i]);
  }
  __syncthreads();
  auto key = [&](int i) { return held ? keys[i] : OrderedKey(x[i]); };
  const Cut cut = k > 0 ? FindCutTogether(share.own, k, key, s) : Cut{~0u, ~0u, 0};
  EmitTogether(
      share.own, cut, key, [&](int i, int at) { to[at] = share.begin + i; }, s);
  for (int i = ClusterRank() * kSelectThreads + threadIdx.x; i < tail; i += kSelectBlocks * kSelectThreads)
    to[k + i] = n + i;
}

}  // namespace

void CudaOps::SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(k >= 0 && k <= n && tail >= 0);
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(rows, DType::kI32, {heads, k + tail}));
  if (k + tail == 0) return;
  Begin();
  const int64_t keys = (n + kSelectBlocks - 1) / kSelectBlocks;
  const bool held = keys <= kMostHeldKeys;
  const int bytes = held ? static_cast<int>(keys * sizeof(uint32_t)) : 0;
  AllowSharedMemory(SelectRows);
  SelectRows<<<dim3(kSelectBlocks, heads), kSelectThreads, bytes, stream_>>>(
      scores.as<float>(), scores.stride[0], static_cast<int>(n), k, tail, rows.as<int32_t>(), rows.stride[0],
      held);
  Launched("SelectTop");
}

}  // namespace sluice
