#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "common/base/status.h"
#include "kernels/cpu/chosen_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr int kRunRows = PagedKv::kChunkPages;

// One (batch entry, KV head) at work; memory of one thread.
struct SparqScratch {
  float* scores;       // [group, rows]
  float* sums;         // [rows] over the group, of scores times their temperatures; then weights of a head
  uint32_t* keys;      // [rows]
  int32_t* chosen;     // [rows]
  float* channel_sum;  // [d]
  int32_t* channels;   // [d]
  float* chosen_q;     // [group, k1]
  const void** lines;  // [d]
  AttendScratch attend;

  SparqScratch(Cutter& cutter, int group, int d, int64_t rows)
      : scores(cutter.Take<float>(group * rows)),
        sums(cutter.Take<float>(rows)),
        keys(cutter.Take<uint32_t>(rows)),
        chosen(cutter.Take<int32_t>(rows)),
        channel_sum(cutter.Take<float>(d)),
        channels(cutter.Take<int32_t>(d)),
        chosen_q(cutter.Take<float>(int64_t{group} * d)),
        lines(cutter.Take<const void*>(d)),
        attend(cutter, group, d) {}
};

}  // namespace

void CpuOps::SparqAttention(TensorView q, const PagedKv& cache, bool mean_value, TensorView out) {
  CheckSelecting(q, cache, out);
  SLUICE_CHECK(!mean_value || !cache.value_sums.empty());
  const int batch = static_cast<int>(q.shape[0]), q_heads = static_cast<int>(q.shape[1]);
  const int heads = cache.n_kv_heads, d = cache.head_dim, group = q_heads / heads;
  int64_t most_rows = 0;
  for (int b = 0; b < batch; ++b) {
    const int slot = cache.slots.as<int32_t>()[b];
    const HsaSettings settings = HsaOf(cache, slot);
    SLUICE_CHECK(settings.page == 1 && settings.channels >= 1 && settings.channels <= d);
    SLUICE_CHECK(settings.tokens >= 1 && (!mean_value || settings.sums));
    for (int h = 0; h < heads; ++h) {
      const int64_t len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
      SLUICE_CHECK(len > 0);
      most_rows = std::max(most_rows, len);
    }
  }
  most_rows = (most_rows + kRunRows - 1) / kRunRows * kRunRows;
  Cutter count(nullptr);
  SparqScratch(count, group, d, most_rows);
  ThreadScratch scratch;
  if (!ReserveThreadScratch(count.bytes(), &scratch)) return;
  const bool bf16 = cache.dtype == DType::kBF16;

  pool_.Run(batch * heads, [&](int task, int thread) {
    const int b = task / heads, h = task % heads, slot = cache.slots.as<int32_t>()[b];
    const HsaSettings settings = HsaOf(cache, slot);
    const int len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
    const int k1 = settings.channels, k2 = std::min(settings.tokens, len);
    Cutter cutter(scratch.of(thread));
    const SparqScratch s(cutter, group, d, most_rows);
    const float* query = Row<float>(q, b, h * group);
    float* to = Row<float>(out, b, h * group);
    if (k2 == len) {  // nothing is left to the mean
      std::iota(s.chosen, s.chosen + len, 0);
      AttendChosen(*kernels_.decode, query, group, cache, slot, h, s.chosen, len, s.attend, to);
      return;
    }

    // Scores in the channels where the queries are largest.
    ChooseChannels(query, group, d, k1, s.channel_sum, s.channels);
    float inverse_tau[kMaxGroup];
    for (int g = 0; g < group; ++g) {
      inverse_tau[g] = InverseTemperature(query + g * d, d, s.channels, k1);
      for (int i = 0; i < k1; ++i) s.chosen_q[g * k1 + i] = query[g * d + s.channels[i]];
    }
    const PageBounds columns(cache, slot, h, 1);
    for (int run = 0; run * kRunRows < len; ++run) {
      for (int i = 0; i < k1; ++i) s.lines[i] = columns.line(run, s.channels[i], false);
      kernels_.decode->page_scores(s.chosen_q, k1, group, k1, bf16, s.lines, s.scores + run * kRunRows,
                                   most_rows);
    }
    // One set of rows for the group, the latest ones in any case.
    for (int x = 0; x < len; ++x) s.sums[x] = s.scores[x] * inverse_tau[0];
    for (int g = 1; g < group; ++g)
      for (int x = 0; x < len; ++x) s.sums[x] += s.scores[g * most_rows + x] * inverse_tau[g];
    const int latest = k2 / 4 + 1;
    std::fill(s.sums + len - latest, s.sums + len, std::numeric_limits<float>::infinity());
    ChooseBest(s.sums, len, k2, s.keys, s.chosen);
    AttendChosen(*kernels_.decode, query, group, cache, slot, h, s.chosen, k2, s.attend, to);
    if (!mean_value) return;

    const float* value_sums = PagedRows::ValueSums(cache, slot, h);
    for (int g = 0; g < group; ++g) {
      kernels_.decode->page_weights(s.scores + g * most_rows, most_rows, 1, len, 1, 1, inverse_tau + g,
                                    s.sums);
      float read = 0;  // the share of the approximate softmax that the chosen rows have
      for (int i = 0; i < k2; ++i) read += s.sums[s.chosen[i]];
      const float rest = (1 - read) / static_cast<float>(len);
      for (int c = 0; c < d; ++c) to[g * d + c] = read * to[g * d + c] + rest * value_sums[c];
    }
  });
}

}  // namespace sluice
