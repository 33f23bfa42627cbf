#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

constexpr int kThreads = 256, kParts = 32;

// grid (kParts, heads). A block adds up every 32nd pool page of a head, a thread every n-th row of a column;
// rows and parts are added in the same order always. parts [heads, kParts, d].
template <class T>
__global__ __launch_bounds__(kThreads) void SumPages(PagedCache cache, int slot, float* parts) {
  __shared__ float sums[kThreads];
  const int head = blockIdx.y, d = cache.d, len = cache.Length(slot, head);
  SLUICE_DEVICE_CHECK(len >= 0 && len <= cache.max_pages * PagedKv::kPageRows);
  const int columns = min(d, kThreads), at_once = kThreads / columns, lane = threadIdx.x / columns;
  float* to = parts + (head * kParts + blockIdx.x) * d;
  for (int c = threadIdx.x % columns; c < d; c += columns) {
    float sum = 0;
    for (int page = blockIdx.x; page * PagedKv::kPageRows < len && lane < at_once; page += kParts) {
      const int begin = page * PagedKv::kPageRows, end = min(begin + PagedKv::kPageRows, len);
      const T* v = cache.V<T>(cache.Place(slot, head, begin)) + c;
      for (int row = lane; row < end - begin; row += at_once) sum += ToFloat(v[row * d]);
    }
    if (at_once == 1) {
      if (lane == 0) to[c] = sum;
      continue;
    }
    sums[threadIdx.x] = sum;  // all columns are taken at once: every thread is here once
    __syncthreads();
    if (lane > 0) break;
    for (int other = 1; other < at_once; ++other) sum += sums[other * columns + c];
    to[c] = sum;
  }
}

// grid heads.
__global__ __launch_bounds__(kThreads) void SumParts(PagedCache cache, int slot, const float* parts) {
  const int head = blockIdx.x;
  const float* from = parts + head * kParts * cache.d;
  for (int c = threadIdx.x; c < cache.d; c += kThreads) {
    float sum = 0;
    for (int part = 0; part < kParts; ++part) sum += from[part * cache.d + c];
    cache.ValueSums(slot, head)[c] = sum;
  }
}

}  // namespace

void CudaOps::SumValues(const PagedKv& cache, int slot) {
  CheckSumValues(cache, slot);
  Begin();
  const int heads = cache.n_kv_heads;
  char* memory = Reserve(int64_t{heads} * kParts * cache.head_dim * sizeof(float));
  if (memory == nullptr) return;
  float* parts = reinterpret_cast<float*>(memory);
  auto kernel = cache.dtype == DType::kBF16 ? &SumPages<Bf16> : &SumPages<float>;
  kernel<<<dim3(kParts, heads), kThreads, 0, stream_>>>(PagedCache(cache), slot, parts);
  SumParts<<<heads, kThreads, 0, stream_>>>(PagedCache(cache), slot, parts);
  Launched("SumValues");
}

}  // namespace sluice
