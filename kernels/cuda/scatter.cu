#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/paged_cache.cuh"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kRunPages = PagedKv::kChunkPages;
constexpr int kThreads = 256;
constexpr int kChannelGroups = kThreads / kRunPages;

// Rows [begin, begin + n) of one (slot, KV head), from k and v [n, d].
template <class T>
struct NewRows {
  const T *k, *v;
  int64_t k_stride, v_stride;
  int slot, head, begin, n;
};

// grid: copy_blocks blocks of 8 rows, a warp a row; then a block per run of 64 HSA pages that the rows touch.
// Bounds come from the new rows themselves and, where the first page began earlier, from the cache.
template <class T>
__global__ void WriteRows(PagedCache cache, NewRows<T> a, int copy_blocks) {
  if (static_cast<int>(blockIdx.x) < copy_blocks) {
    const int i = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
    if (i >= a.n) return;
    const int place = cache.Place(a.slot, a.head, a.begin + i);
    const T* k = a.k + i * a.k_stride;
    const T* v = a.v + i * a.v_stride;
    for (int c = threadIdx.x % kWarp; c < cache.d; c += kWarp) {
      cache.K<T>(place)[c] = k[c];
      cache.V<T>(place)[c] = v[c];
    }
    return;
  }
  const int page = cache.Hsa(a.slot).page;
  if (page == 0) return;
  const int first = a.begin / page, last = (a.begin + a.n - 1) / page;
  const int run = first / kRunPages + blockIdx.x - copy_blocks, j = run * kRunPages + threadIdx.x % kRunPages;
  if (j < first || j > last) return;
  const int row_begin = j * page, end = min(row_begin + page, a.begin + a.n);
  for (int c = threadIdx.x / kRunPages; c < cache.d; c += kChannelGroups) {
    T low{}, high{};
    for (int row = row_begin; row < end; ++row) {
      const T value = row < a.begin ? cache.K<T>(cache.Place(a.slot, a.head, row))[c]
                                    : a.k[(row - a.begin) * a.k_stride + c];
      if (row == row_begin || ToFloat(value) < ToFloat(low)) low = value;
      if (row == row_begin || ToFloat(value) > ToFloat(high)) high = value;
    }
    cache.BoundsLine<T>(a.slot, a.head, page, run, c, false)[j % kRunPages] = low;
    if (page > 1) cache.BoundsLine<T>(a.slot, a.head, page, run, c, true)[j % kRunPages] = high;
  }
}

}  // namespace

void CudaOps::ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                        int row_begin) {
  CheckScatterKv(k, v, cache, slot, kv_head, row_begin);
  const int64_t n = k.shape[0], d = cache.head_dim;
  if (n == 0) return;
  Begin();
  const int copy_blocks = static_cast<int>(CeilDiv(n, kThreads / kWarp));
  // Pages of one row make the most runs.
  const int run_blocks = cache.hsa.empty() ? 0 : static_cast<int>(CeilDiv(n, kRunPages)) + 1;
  auto start = [&](auto unit) {
    using T = decltype(unit);
    const NewRows<T> rows = {k.as<T>(), v.as<T>(), k.stride[0], v.stride[0],
                             slot,      kv_head,   row_begin,   static_cast<int>(n)};
    WriteRows<<<copy_blocks + run_blocks, kThreads, 0, stream_>>>(PagedCache(cache), rows, copy_blocks);
  };
  cache.dtype == DType::kBF16 ? start(Bf16()) : start(float());
  Launched("ScatterKv");
}

}  // namespace sluice
