#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::WindowScores(const WindowScoresArgs& a) {
  CheckWindowScores(a);
  const int64_t window = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t group = q_heads / a.k.shape[0], score_rows = a.scores.shape[0], n = a.scores.shape[1];
  if (n == 0) return;

  const int64_t share = q_heads / score_rows;  // query heads that are summed
  constexpr int kTaskKeys = 512;
  const int blocks = static_cast<int>((n + kTaskKeys - 1) / kTaskKeys);
  ThreadScratch scratch;
  const int rows = static_cast<int>(window * share);
  if (!ReserveThreadScratch(kernels_.attention->scratch_bytes(rows, static_cast<int>(d)), &scratch)) return;
  pool_.Run(static_cast<int>(score_rows) * blocks, [&](int task, int thread) {
    const int64_t row = task / blocks, q_head = row * share, kv_head = q_head / group;
    WindowScoresBlock block = {};
    block.q = Row<float>(a.q, 0, q_head);
    block.q_row_stride = a.q.stride[0];
    block.window = static_cast<int>(window);
    block.group = static_cast<int>(share);
    block.head_dim = static_cast<int>(d);
    block.bf16 = a.k.dtype == DType::kBF16;
    block.k = RowBytes(a.k, kv_head, 0);
    block.k_row_stride = a.k.stride[1];
    if (!a.raw) block.lse = Row<float>(a.lse, q_head);
    block.lse_head_stride = a.lse.stride[0];
    block.key_begin = task % blocks * kTaskKeys;
    block.key_end = std::min(block.key_begin + kTaskKeys, static_cast<int>(n));
    block.first_query_row = static_cast<int>(a.k.shape[1] - window);
    if (a.sliding_window > 0) block.positions = Row<int32_t>(a.positions, kv_head);
    block.sliding_window = a.sliding_window;
    block.raw = a.raw;
    block.round_weights = a.round_weights;
    block.accumulate = a.accumulate;
    block.scores = Row<float>(a.scores, row);
    kernels_.attention->window_scores(block, scratch.of(thread));
  });
}

}  // namespace sluice
