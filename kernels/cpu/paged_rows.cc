#include "kernels/cpu/paged_rows.h"

#include "common/base/status.h"
#include "kernels/cpu/views.h"

namespace sluice {

void CheckPagedKv(const PagedKv& cache) {
  const int64_t n_slots = cache.kept_len.shape[0], heads = cache.n_kv_heads;
  SLUICE_CHECK(IsKvDType(cache.dtype) && heads > 0 && cache.head_dim % 16 == 0 && cache.head_dim > 0);
  SLUICE_CHECK(Is(cache.page_table, DType::kI32, {n_slots, heads, cache.page_table.shape[2]}));
  SLUICE_CHECK(Is(cache.kept_len, DType::kI32, {n_slots, heads}));
  SLUICE_CHECK(cache.row_begin.empty() || Is(cache.row_begin, DType::kI32, {n_slots, heads}));
  if (cache.hsa.empty()) return;
  SLUICE_CHECK(Is(cache.hsa, DType::kI32, {n_slots, 3}));
  SLUICE_CHECK(Is(cache.chunk_table, DType::kI32, {n_slots, heads, cache.chunk_table.shape[2]}));
}

}  // namespace sluice
