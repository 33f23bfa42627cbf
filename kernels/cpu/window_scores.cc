#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::WindowScores(const WindowScoresArgs& a) {
  CheckWindowScores(a);
  const int64_t window = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[0], len = a.k.shape[1], prefix = len - window;
  if (prefix == 0) return;

  const int group = static_cast<int>(q_heads / kv_heads);
  constexpr int kTaskKeys = 512;
  const int blocks = static_cast<int>((prefix + kTaskKeys - 1) / kTaskKeys);
  ThreadScratch scratch;
  const int rows = static_cast<int>(window) * group;
  if (!ReserveThreadScratch(kernels_.attention->scratch_bytes(rows, static_cast<int>(d)), &scratch)) return;
  pool_.Run(static_cast<int>(kv_heads) * blocks, [&](int task, int thread) {
    const int head = task / blocks;
    WindowScoresBlock block = {};
    block.q = Row<float>(a.q, 0, head * group);
    block.q_row_stride = a.q.stride[0];
    block.window = static_cast<int>(window);
    block.group = group;
    block.head_dim = static_cast<int>(d);
    block.bf16 = a.k.dtype == DType::kBF16;
    block.k = RowBytes(a.k, head, 0);
    block.k_row_stride = a.k.stride[1];
    block.lse = Row<float>(a.lse, head * group);
    block.lse_head_stride = a.lse.stride[0];
    block.key_begin = task % blocks * kTaskKeys;
    block.key_end = std::min(block.key_begin + kTaskKeys, static_cast<int>(prefix));
    block.first_query_row = static_cast<int>(prefix);
    if (a.sliding_window > 0) block.positions = Row<int32_t>(a.positions, head);
    block.sliding_window = a.sliding_window;
    block.scores = Row<float>(a.scores, head);
    kernels_.attention->window_scores(block, scratch.of(thread));
  });
}

}  // namespace sluice
