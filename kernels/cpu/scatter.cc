#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// Bounds of every page that meets rows [begin, end), from the rows in the cache.
template <class T>
void RebuildBounds(const PagedRows& rows, const PageBounds& bounds, int page, int begin, int end) {
  for (int row = begin / page * page; row < end; ++row)
    bounds.Add(row, reinterpret_cast<const T*>(rows.k(row)));
}

}  // namespace

void CpuOps::ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                       int row_begin) {
  CheckScatterKv(k, v, cache, slot, kv_head, row_begin);
  const int64_t n = k.shape[0];
  const PagedRows rows(cache, slot, kv_head);
  const int page = HsaOf(cache, slot).page;
  // In the caller's thread: rows arrive while a step runs, and neither may wait for the other's threads.
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(rows.k(static_cast<int>(row_begin + i)), RowBytes(k, i, 0), rows.row_bytes());
    std::memcpy(rows.v(static_cast<int>(row_begin + i)), RowBytes(v, i, 0), rows.row_bytes());
  }
  if (page == 0 || n == 0) return;
  const PageBounds bounds(cache, slot, kv_head, page);
  const int end = row_begin + static_cast<int>(n);
  cache.dtype == DType::kBF16 ? RebuildBounds<uint16_t>(rows, bounds, page, row_begin, end)
                              : RebuildBounds<float>(rows, bounds, page, row_begin, end);
}

}  // namespace sluice
