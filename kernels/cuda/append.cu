#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// grid (heads, batch). A block writes one row of K and V, widens the bounds of its page and counts it.
template <class T>
__global__ void AppendRow(PagedCache cache, const float* k, int64_t k_row, int64_t k_head, const float* v,
                          int64_t v_row, int64_t v_head) {
  LetSuccessorStart();
  // No kernel writes slots, tables or settings; the length is a guess until the wait is over.
  const int head = blockIdx.x, entry = blockIdx.y, slot = cache.slots[entry];
  const int capacity = cache.max_pages * PagedKv::kPageRows;
  int32_t* kept = cache.kept_len.At(slot, head);
  const int page = cache.Hsa(slot).page, guess = __ldcg(kept);
  int place = guess >= 0 && guess < capacity ? cache.Place(slot, head, guess) : 0;
  WaitForPredecessor();
  const int row = __ldcg(kept);
  SLUICE_DEVICE_CHECK(row >= 0 && row < capacity);
  if (row != guess) place = cache.Place(slot, head, row);
  const int run = page > 0 ? row / page / PagedKv::kChunkPages : 0;
  const int column = page > 0 ? row / page % PagedKv::kChunkPages : 0;
  k += entry * k_row + head * k_head;
  v += entry * v_row + head * v_head;
  for (int c = threadIdx.x; c < cache.d; c += blockDim.x) {
    const T value = FromFloat<T>(k[c]);
    cache.K<T>(place)[c] = value;
    cache.V<T>(place)[c] = FromFloat<T>(v[c]);
    if (page == 0) continue;
    T* low = cache.BoundsLine<T>(slot, head, page, run, c, false) + column;
    if (page == 1) {
      *low = value;
      continue;
    }
    T* high = cache.BoundsLine<T>(slot, head, page, run, c, true) + column;
    const bool first = row % page == 0;
    if (first || ToFloat(value) < ToFloat(*low)) *low = value;
    if (first || ToFloat(value) > ToFloat(*high)) *high = value;
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
  const int64_t batch = k.shape[0], heads = cache.n_kv_heads, d = cache.head_dim;
  if (batch == 0) return;
  Begin();
  auto kernel = cache.dtype == DType::kBF16 ? &AppendRow<Bf16> : &AppendRow<float>;
  LaunchEarly(kernel, dim3(heads, batch), 128, 0, stream_, PagedCache(cache), k.as<float>(), k.stride[0],
              k.stride[1], v.as<float>(), v.stride[0], v.stride[1]);
  Launched("AppendKv");
}

}  // namespace sluice
