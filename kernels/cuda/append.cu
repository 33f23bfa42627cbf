#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (heads, batch). A block writes one row of K and V, widens the bounds of its page, adds V to the sums
// of values and counts the row.
template <class T>
__global__ void AppendRow(PagedCache cache, const float* k, int64_t k_row, int64_t k_head, const float* v,
                          int64_t v_row, int64_t v_head) {
  LetSuccessorStart();
  // No kernel writes slots, tables or settings; the length is a guess until the wait is over.
  const int head = blockIdx.x, entry = blockIdx.y, slot = cache.slots[entry];
  const int capacity = cache.max_pages * PagedKv::kPageRows;
  int32_t* kept = cache.kept_len.At(slot, head);
  const HsaSettings settings = cache.Hsa(slot);
  const int page = settings.page, guess = __ldcg(kept);
  float* const sums = settings.sums ? cache.ValueSums(slot, head) : nullptr;
  int place = 0;
  T *low = nullptr, *high = nullptr;  // of channel 0
  auto find = [&](int row) {
    place = cache.Place(slot, head, row);
    if (page == 0) return;
    const int run = row / page / PagedKv::kChunkPages, column = row / page % PagedKv::kChunkPages;
    low = cache.BoundsLine<T>(slot, head, page, run, 0, false) + column;
    high = page == 1 ? low : cache.BoundsLine<T>(slot, head, page, run, 0, true) + column;
  };
  if (guess >= 0 && guess < capacity) {
    find(guess);
    for (int c = threadIdx.x; c < cache.d && page > 1; c += blockDim.x) {  // they are read below
      Prefetch(low + c * PagedKv::kChunkPages);
      Prefetch(high + c * PagedKv::kChunkPages);
    }
  }
  if (sums != nullptr && static_cast<int>(threadIdx.x) < cache.d) Prefetch(sums + threadIdx.x);
  WaitForPredecessor();
  const int row = __ldcg(kept);
  SLUICE_DEVICE_CHECK(row >= 0 && row < capacity);
  if (row != guess) find(row);
  const bool first = page == 0 || row % page == 0;
  k += entry * k_row + head * k_head;
  v += entry * v_row + head * v_head;
  for (int c = threadIdx.x; c < cache.d; c += blockDim.x) {
    const int at = c * PagedKv::kChunkPages;
    const T value = FromFloat<T>(k[c]);
    const float least = first ? 0 : ToFloat(low[at]), most = first ? 0 : ToFloat(high[at]);
    cache.K<T>(place)[c] = value;
    const T of_v = FromFloat<T>(v[c]);
    cache.V<T>(place)[c] = of_v;
    if (sums != nullptr) sums[c] += ToFloat(of_v);
    if (page > 0 && (first || ToFloat(value) < least)) low[at] = value;
    if (page > 1 && (first || ToFloat(value) > most)) high[at] = value;
  }
  __syncthreads();  // all have read the length and written their part of the row
  if (threadIdx.x == 0) {
    __threadfence();
    *kept = row + 1;
  }
}

}  // namespace

void CudaOps::AppendKv(TensorView k, TensorView v, const PagedKv& cache) {
  CheckAppendKv(k, v, cache);
  const int64_t batch = k.shape[0], heads = cache.n_kv_heads;
  if (batch == 0) return;
  Begin();
  auto kernel = cache.dtype == DType::kBF16 ? &AppendRow<Bf16> : &AppendRow<float>;
  LaunchEarly(kernel, dim3(heads, batch), 128, 0, stream_, PagedCache(cache), k.as<float>(), k.stride[0],
              k.stride[1], v.as<float>(), v.stride[0], v.stride[1]);
  Launched("AppendKv");
}

}  // namespace sluice
