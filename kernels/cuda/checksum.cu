#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kThreads = 256;

__device__ inline uint64_t Weighted(uint32_t word, int64_t i) {
  return uint64_t{word} * static_cast<uint32_t>(2 * i + 1);
}

// grid-stride over 16 bytes; the sum of a block goes into *sum, which starts as 0. The order of the sums does
// not matter. Words before and behind the 16-byte ones are block 0's.
__global__ void SumWords(const uint32_t* words, int64_t n, int64_t head, int64_t quads,
                         unsigned long long* sum) {
  const auto* vectors = reinterpret_cast<const uint4*>(words + head);
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  uint64_t own = 0;
  for (int64_t q = thread; q < quads; q += int64_t{gridDim.x} * kThreads) {
    const uint4 v = __ldcs(vectors + q);
    const int64_t i = head + 4 * q;
    own += Weighted(v.x, i) + Weighted(v.y, i + 1) + Weighted(v.z, i + 2) + Weighted(v.w, i + 3);
  }
  if (blockIdx.x == 0) {
    const int64_t rest = n - 4 * quads;  // fewer than 3 in front, fewer than 4 behind
    if (threadIdx.x < rest) {
      const int64_t i = threadIdx.x < head ? threadIdx.x : threadIdx.x + 4 * quads;
      own += Weighted(words[i], i);
    }
  }
  for (int lane = kWarp / 2; lane > 0; lane /= 2) own += __shfl_xor_sync(kAllLanes, own, lane);
  __shared__ uint64_t warps[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) own += warps[w];
  atomicAdd(sum, own);
}

}  // namespace

void CudaOps::Checksum(TensorView words, TensorView out) {
  SLUICE_CHECK(words.rank == 1 && DTypeSize(words.dtype) == 4 && IsContiguous(words) &&
               Is(out, DType::kI32, {2}));
  SLUICE_CHECK(reinterpret_cast<uintptr_t>(out.data) % sizeof(uint64_t) == 0);
  Begin();
  Keep(cudaMemsetAsync(out.data, 0, sizeof(uint64_t), stream_), "Checksum");
  const int64_t n = words.shape[0];
  if (n == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(words.data);
  const int64_t head = std::min<int64_t>(n, (16 - address % 16) % 16 / 4), quads = (n - head) / 4;
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(quads, 4 * kThreads), 1, 4 * device_.n_sms);
  SumWords<<<blocks, kThreads, 0, stream_>>>(static_cast<const uint32_t*>(words.data), n, head, quads,
                                             static_cast<unsigned long long*>(out.data));
  Launched("Checksum");
}

}  // namespace sluice
