#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::AppendKv(TensorView k, TensorView v, const PagedKv& cache) {
  CheckAppendKv(k, v, cache);
  const int64_t batch = k.shape[0], heads = cache.n_kv_heads, d = cache.head_dim;
  ForRange(batch * heads, 16 * d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / heads;
      const int slot = cache.slots.as<int32_t>()[b], head = static_cast<int>(i % heads);
      int32_t& len = PagedRows::TableRow(cache.kept_len, slot, head)[0];
      SLUICE_CHECK(len < cache.page_table.shape[2] * PagedKv::kPageRows);
      const PagedRows rows(cache, slot, head);
      const HsaSettings hsa = HsaOf(cache, slot);
      const int page = hsa.page;
      const float* from_k = Row<float>(k, b, head);
      const float* from_v = Row<float>(v, b, head);
      if (cache.dtype == DType::kBF16) {
        auto* to = reinterpret_cast<uint16_t*>(rows.k(len));
        kernels_.row->round_to_bf16(from_k, static_cast<int>(d), to);
        kernels_.row->round_to_bf16(from_v, static_cast<int>(d), reinterpret_cast<uint16_t*>(rows.v(len)));
        if (page > 0) PageBounds(cache, slot, head, page).Add(len, to);
      } else {
        std::memcpy(rows.k(len), from_k, rows.row_bytes());
        std::memcpy(rows.v(len), from_v, rows.row_bytes());
        if (page > 0) PageBounds(cache, slot, head, page).Add(len, from_k);
      }
      if (hsa.sums)
        AddValueRow(rows.v(len), cache.dtype, cache.head_dim, PagedRows::ValueSums(cache, slot, head));
      ++len;
    }
  });
}

}  // namespace sluice
