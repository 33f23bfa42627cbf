#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/base/status.h"
#include "kernels/cpu/chosen_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/paged_rows.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// One (batch entry, KV head) at work; memory of one thread.
struct TopKScratch {
  float* scores;    // [group, rows]
  float* weights;   // [rows]
  uint32_t* keys;   // [rows]
  int32_t* chosen;  // [rows]
  float* scaled_q;  // [group, d]
  AttendScratch attend;

  TopKScratch(Cutter& cutter, int group, int d, int64_t rows)
      : scores(cutter.Take<float>(group * rows)),
        weights(cutter.Take<float>(rows)),
        keys(cutter.Take<uint32_t>(rows)),
        chosen(cutter.Take<int32_t>(rows)),
        scaled_q(cutter.Take<float>(int64_t{group} * d)),
        attend(cutter, group, d) {}
};

}  // namespace

void CpuOps::TopKAttention(TensorView q, const PagedKv& cache, bool per_group, TensorView out) {
  CheckSelecting(q, cache, out);
  const int batch = static_cast<int>(q.shape[0]), q_heads = static_cast<int>(q.shape[1]);
  const int heads = cache.n_kv_heads, d = cache.head_dim, group = q_heads / heads;
  int64_t most_rows = 0;
  for (int b = 0; b < batch; ++b) {
    const int slot = cache.slots.as<int32_t>()[b];
    SLUICE_CHECK(HsaOf(cache, slot).tokens >= 1);
    for (int h = 0; h < heads; ++h) {
      const int64_t len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
      SLUICE_CHECK(len > 0);
      most_rows = std::max(most_rows, len);
    }
  }
  Cutter count(nullptr);
  TopKScratch(count, group, d, most_rows);
  ThreadScratch scratch;
  if (!ReserveThreadScratch(count.bytes(), &scratch)) return;
  const bool bf16 = cache.dtype == DType::kBF16;

  pool_.Run(batch * heads, [&](int task, int thread) {
    const int b = task / heads, h = task % heads, slot = cache.slots.as<int32_t>()[b];
    const int len = PagedRows::TableRow(cache.kept_len, slot, h)[0];
    const int n = std::min(HsaOf(cache, slot).tokens, len);
    Cutter cutter(scratch.of(thread));
    const TopKScratch s(cutter, group, d, most_rows);
    const float* query = Row<float>(q, b, h * group);
    float* to = Row<float>(out, b, h * group);

    const float scale = 1 / std::sqrt(static_cast<float>(d));
    for (int i = 0; i < group * d; ++i) s.scaled_q[i] = query[i] * scale;
    const PagedRows rows(cache, slot, h);
    const void* k[kRowBlock];
    for (int begin = 0; begin < len; begin += kRowBlock) {
      const int n_rows = std::min(kRowBlock, len - begin);
      for (int i = 0; i < n_rows; ++i) k[i] = rows.k(begin + i);
      kernels_.decode->row_scores(s.scaled_q, group, d, bf16, k, n_rows, s.scores + begin, most_rows);
    }
    if (per_group) {
      float inverse_tau[kMaxGroup];
      std::fill(inverse_tau, inverse_tau + group, 1.f);
      kernels_.decode->page_weights(s.scores, most_rows, group, len, 1, 1, inverse_tau, s.weights);
      ChooseBest(s.weights, len, n, s.keys, s.chosen);
      AttendChosen(*kernels_.decode, query, group, cache, slot, h, s.chosen, n, s.attend, to);
      return;
    }
    for (int g = 0; g < group; ++g) {
      ChooseBest(s.scores + g * most_rows, len, n, s.keys, s.chosen);
      AttendChosen(*kernels_.decode, query + g * d, 1, cache, slot, h, s.chosen, n, s.attend, to + g * d);
    }
  });
}

}  // namespace sluice
