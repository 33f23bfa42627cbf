#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/chosen_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/decode_split.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kPages = PagedKv::kChunkPages;

// One (batch entry, KV head) at work; memory of one thread.
struct HsaScratch {
  float* scores;       // [group, padded pages]
  float* weights;      // [padded pages]
  uint64_t* order;     // [padded pages]
  float* channel_sum;  // [d] sum over the group of |q|
  float* chosen_q;     // [group, k1] q of the chosen channels
  float* scaled_q;     // [group, d]
  int32_t* channels;   // [d]
  const void** lines;  // [d]
  void* part;

  static size_t bytes(int group, int d, int64_t pages) {
    return pages * (sizeof(uint64_t) + (group + 1) * sizeof(float)) +
           d * (sizeof(void*) + sizeof(int32_t) + (2 * group + 1) * sizeof(float)) +
           DecodeParts::bytes(1, group, d);
  }
  HsaScratch(char* memory, int group, int d, int64_t pages) {
    auto take = [&](size_t bytes) {
      void* p = memory;
      memory += bytes;
      return p;
    };
    order = static_cast<uint64_t*>(take(pages * sizeof(uint64_t)));
    lines = static_cast<const void**>(take(d * sizeof(void*)));
    scores = static_cast<float*>(take(group * pages * sizeof(float)));
    weights = static_cast<float*>(take(pages * sizeof(float)));
    channel_sum = static_cast<float*>(take(d * sizeof(float)));
    chosen_q = static_cast<float*>(take(group * d * sizeof(float)));
    scaled_q = static_cast<float*>(take(group * d * sizeof(float)));
    channels = static_cast<int32_t*>(take(d * sizeof(int32_t)));
    part = memory;
  }
};

// Picks the first `tokens` rows by (page weight, page); fills `order` with the pages taken, ascending, and
// says how many rows the page at the cut gives.
struct Chosen {
  int n_pages;
  int cut_page;  // -1: no page is cut
  int cut_rows;
};
Chosen ChoosePages(int n_pages, int page, int last_page, int tokens, const HsaScratch& s) {
  // Weights are positive, so their bits order them; the complement of the page breaks ties for the lowest.
  for (int j = 0; j < n_pages; ++j)
    s.order[j] =
        static_cast<uint64_t>(std::bit_cast<uint32_t>(s.weights[j])) << 32 | (~static_cast<uint32_t>(j));
  // One page more than whole pages need: the short last page may be among them.
  const int candidates = std::min(n_pages, (tokens + page - 1) / page + 1);
  std::nth_element(s.order, s.order + candidates - 1, s.order + n_pages, std::greater<uint64_t>());
  std::sort(s.order, s.order + candidates, std::greater<uint64_t>());
  Chosen chosen = {0, -1, 0};
  for (int left = tokens; left > 0 && chosen.n_pages < candidates; ++chosen.n_pages) {
    const int j = static_cast<int>(~static_cast<uint32_t>(s.order[chosen.n_pages]));
    const int rows = j == n_pages - 1 ? last_page : page;
    if (rows > left) {
      chosen.cut_page = j;
      chosen.cut_rows = left;
    }
    left -= std::min(rows, left);
    s.order[chosen.n_pages] = j;
  }
  std::sort(s.order, s.order + chosen.n_pages);
  return chosen;
}

}  // namespace

void CpuOps::HsaAttention(TensorView q, const PagedKv& cache, TensorView out) {
  CheckDecode(q, cache, out);
  const int64_t batch = q.shape[0], q_heads = q.shape[1];
  const int heads = cache.n_kv_heads, d = cache.head_dim, group = static_cast<int>(q_heads / heads);
  SLUICE_CHECK(!cache.hsa.empty());

  int64_t most_pages = 0;
  for (int b = 0; b < batch; ++b) {
    const int slot = cache.slots.as<int32_t>()[b];
    const HsaSettings hsa = HsaOf(cache, slot);
    SLUICE_CHECK(hsa.page >= 1 && hsa.channels >= 1 && hsa.channels <= d && hsa.tokens >= 1);
    for (int h = 0; h < heads; ++h) {
      const int len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
      SLUICE_CHECK(len > 0);
      most_pages = std::max<int64_t>(most_pages, (len + hsa.page - 1) / hsa.page);
    }
  }
  most_pages = (most_pages + kPages - 1) / kPages * kPages;
  ThreadScratch scratch;
  if (!ReserveThreadScratch(HsaScratch::bytes(group, d, most_pages), &scratch)) return;
  const bool bf16 = cache.dtype == DType::kBF16;

  pool_.Run(static_cast<int>(batch) * heads, [&](int task, int thread) {
    const int b = task / heads, h = task % heads, slot = cache.slots.as<int32_t>()[b];
    const HsaSettings hsa = HsaOf(cache, slot);
    const int len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
    const int n_pages = (len + hsa.page - 1) / hsa.page, last_page = len - (n_pages - 1) * hsa.page;
    const HsaScratch s(scratch.of(thread), group, d, most_pages);
    const float* query = Row<float>(q, b, h * group);

    // Channels, signs, temperature.
    const int k1 = hsa.channels;
    ChooseChannels(query, group, d, k1, s.channel_sum, s.channels);
    float inverse_tau[kMaxGroup];
    bool use_max[1024];
    SLUICE_CHECK(d <= 1024);
    for (int i = 0; i < k1; ++i) {
      float sum = 0;
      for (int g = 0; g < group; ++g) sum += query[g * d + s.channels[i]];
      use_max[i] = sum > 0;
      // With one-row pages there are no bounds: the row itself is its minimum and its maximum.
      for (int g = 0; g < group; ++g) s.chosen_q[g * k1 + i] = query[g * d + s.channels[i]];
    }
    for (int g = 0; g < group; ++g) inverse_tau[g] = InverseTemperature(query + g * d, d, s.channels, k1);

    const PageBounds bounds(cache, slot, h, hsa.page);
    for (int run = 0; run * kPages < n_pages; ++run) {
      for (int i = 0; i < k1; ++i) s.lines[i] = bounds.line(run, s.channels[i], use_max[i]);
      kernels_.decode->page_scores(s.chosen_q, k1, group, k1, bf16, s.lines, s.scores + run * kPages,
                                   most_pages);
    }
    kernels_.decode->page_weights(s.scores, most_pages, group, n_pages, hsa.page, last_page, inverse_tau,
                                  s.weights);
    const Chosen chosen = ChoosePages(n_pages, hsa.page, last_page, std::min(hsa.tokens, len), s);

    // Exact attention over the chosen rows.
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    for (int i = 0; i < group * d; ++i) s.scaled_q[i] = query[i] * scale;
    const DecodeParts parts(s.part, group, d);
    parts.Clear(0);
    const PagedRows rows(cache, slot, h);
    const void* k[kRowBlock];
    const void* v[kRowBlock];
    int n = 0;
    auto attend = [&] {
      kernels_.decode->attend_rows(s.scaled_q, group, d, bf16, k, v, n, parts.part(0));
      n = 0;
    };
    for (int i = 0; i < chosen.n_pages; ++i) {
      const int j = static_cast<int>(s.order[i]);
      int end = std::min((j + 1) * hsa.page, len);
      if (j == chosen.cut_page) end = j * hsa.page + chosen.cut_rows;
      for (int row = j * hsa.page; row < end; ++row) {
        k[n] = rows.k(row);
        v[n] = rows.v(row);
        if (++n == kRowBlock) attend();
      }
    }
    if (n > 0) attend();
    parts.Merge(0, 1, Row<float>(out, b, h * group));
  });
}

}  // namespace sluice
