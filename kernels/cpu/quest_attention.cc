#include <algorithm>
#include <cstdint>

#include "common/base/status.h"
#include "kernels/cpu/chosen_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kRunPages = PagedKv::kChunkPages;

// One (batch entry, query head) at work; memory of one thread.
struct QuestScratch {
  float* scores;       // [pages]
  uint32_t* keys;      // [pages]
  int32_t* pages;      // [pages] the chosen ones
  int32_t* rows;       // [rows] theirs
  const void** lines;  // [d]
  AttendScratch attend;

  QuestScratch(Cutter& cutter, int d, int64_t most_pages, int64_t most_rows)
      : scores(cutter.Take<float>(most_pages)),
        keys(cutter.Take<uint32_t>(most_pages)),
        pages(cutter.Take<int32_t>(most_pages)),
        rows(cutter.Take<int32_t>(most_rows)),
        lines(cutter.Take<const void*>(d)),
        attend(cutter, 1, d) {}
};

}  // namespace

void CpuOps::QuestAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckSelecting(q, cache, out);
  const int batch = static_cast<int>(q.shape[0]), q_heads = static_cast<int>(q.shape[1]);
  const int heads = cache.n_kv_heads, d = cache.head_dim, group = q_heads / heads;
  int64_t most_pages = 0, most_rows = 0;
  for (int b = 0; b < batch; ++b) {
    const int slot = cache.slots.as<int32_t>()[b];
    const HsaSettings settings = HsaOf(cache, slot);
    SLUICE_CHECK(settings.page > 1 && settings.tokens >= 1);
    for (int h = 0; h < heads; ++h) {
      const int64_t len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
      SLUICE_CHECK(len > 0);
      most_pages = std::max(most_pages, (len + settings.page - 1) / settings.page);
      most_rows = std::max(most_rows, len);
    }
  }
  most_pages = (most_pages + kRunPages - 1) / kRunPages * kRunPages;
  Cutter count(nullptr);
  QuestScratch(count, d, most_pages, most_rows);
  ThreadScratch scratch;
  if (!ReserveThreadScratch(count.bytes(), &scratch)) return;
  const bool bf16 = cache.dtype == DType::kBF16;

  pool_.Run(batch * q_heads, [&](int task, int thread) {
    const int b = task / q_heads, q_head = task % q_heads, h = q_head / group;
    const int slot = cache.slots.as<int32_t>()[b];
    const HsaSettings settings = HsaOf(cache, slot);
    const int page = settings.page, len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
    const int n_pages = (len + page - 1) / page;
    Cutter cutter(scratch.of(thread));
    const QuestScratch s(cutter, d, most_pages, most_rows);
    const float* query = Row<float>(q, b, q_head);

    // The largest score that a page could have: of each channel the bound on the side of the query.
    const PageBounds bounds(cache, slot, h, page);
    for (int run = 0; run * kRunPages < n_pages; ++run) {
      for (int c = 0; c < d; ++c) s.lines[c] = bounds.line(run, c, query[c] > 0);
      kernels_.decode->page_scores(query, d, 1, d, bf16, s.lines, s.scores + run * kRunPages, most_pages);
    }
    const int n_chosen = std::min(std::max(1, settings.tokens / page), n_pages);
    ChooseBest(s.scores, n_pages, n_chosen, s.keys, s.pages);
    int n = 0;
    for (int i = 0; i < n_chosen; ++i) {
      const int end = std::min((s.pages[i] + 1) * page, len);
      for (int row = s.pages[i] * page; row < end; ++row) s.rows[n++] = row;
    }
    AttendChosen(*kernels_.decode, query, 1, cache, slot, h, s.rows, n, s.attend, Row<float>(out, b, q_head));
  });
}

}  // namespace sluice
