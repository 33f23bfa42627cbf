#include <algorithm>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/op_checks.h"

namespace sluice {

void CpuOps::SumValues(const PagedKv& cache, int slot) {
  CheckSumValues(cache, slot);
  const int d = cache.head_dim;
  SLUICE_CHECK(d <= 1024);
  // In the caller's thread, as ScatterKv: a step may be running.
  for (int head = 0; head < cache.n_kv_heads; ++head) {
    const PagedRows rows(cache, slot, head);
    const int len = PagedRows::TableRow(cache.kept_len, slot, head)[0];
    double sums[1024];
    std::fill(sums, sums + d, 0);
    for (int row = 0; row < len; ++row) AddValueRow(rows.v(row), cache.dtype, d, sums);
    std::copy(sums, sums + d, PagedRows::ValueSums(cache, slot, head));
  }
}

}  // namespace sluice
