#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/decode_split.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kPartRows = 8 * PagedKv::kPageRows;

// One (batch entry, KV head) and its parts.
struct Unit {
  int entry, slot, head;
  int row_begin, row_end;
  int64_t first_part, end_part;
};

}  // namespace

void CpuOps::PagedAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckDecode(q, cache, out);
  const int64_t batch = q.shape[0], q_heads = q.shape[1];
  const int heads = cache.n_kv_heads, d = cache.head_dim, group = static_cast<int>(q_heads / heads);

  std::vector<Unit> units;
  std::vector<std::pair<int, int>> parts;  // (unit, first row)
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < heads; ++h) {
      Unit u;
      u.entry = b;
      u.slot = cache.slots.as<int32_t>()[b];
      u.head = h;
      u.row_begin = cache.row_begin.empty() ? 0 : PagedRows::TableRow(cache.row_begin, u.slot, h)[0];
      u.row_end = PagedRows::TableRow(cache.kept_len, u.slot, h)[0];
      SLUICE_CHECK(0 <= u.row_begin && u.row_begin < u.row_end);
      u.first_part = static_cast<int64_t>(parts.size());
      for (int row = u.row_begin / kPartRows * kPartRows; row < u.row_end; row += kPartRows)
        parts.emplace_back(static_cast<int>(units.size()), row);
      u.end_part = static_cast<int64_t>(parts.size());
      units.push_back(u);
    }
  }

  const size_t q_bytes = static_cast<size_t>(group) * d * sizeof(float);
  char* memory = ReserveShared(DecodeParts::bytes(static_cast<int64_t>(parts.size()), group, d));
  ThreadScratch scratch;
  if (memory == nullptr || !ReserveThreadScratch(q_bytes, &scratch)) return;
  const DecodeParts partials(memory, group, d);
  const float scale = 1 / std::sqrt(static_cast<float>(d));

  pool_.Run(static_cast<int>(parts.size()), [&](int task, int thread) {
    const Unit& u = units[parts[task].first];
    const PagedRows rows(cache, u.slot, u.head);
    float* scaled = reinterpret_cast<float*>(scratch.of(thread));
    const float* from = Row<float>(q, u.entry, u.head * group);
    for (int i = 0; i < group * d; ++i) scaled[i] = from[i] * scale;
    partials.Clear(task);
    const int part_end = std::min(parts[task].second + kPartRows, u.row_end);
    for (int page = parts[task].second; page < part_end; page += PagedKv::kPageRows) {
      const void* k[PagedKv::kPageRows];
      const void* v[PagedKv::kPageRows];
      int n = 0;
      const int end = std::min(page + PagedKv::kPageRows, part_end);
      for (int row = std::max(page, u.row_begin); row < end; ++row, ++n) {
        k[n] = rows.k(row);
        v[n] = rows.v(row);
      }
      if (n > 0)
        kernels_.decode->attend_rows(scaled, group, d, cache.dtype == DType::kBF16, k, v, n,
                                     partials.part(task));
    }
  });
  ForRange(static_cast<int64_t>(units.size()),
           static_cast<int64_t>(group) * d * (parts.size() / units.size() + 1),
           [&](int64_t begin, int64_t end) {
             for (int64_t i = begin; i < end; ++i) {
               const Unit& u = units[i];
               partials.Merge(u.first_part, u.end_part, Row<float>(out, u.entry, u.head * group));
             }
           });
}

}  // namespace sluice
