#include <algorithm>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// Query rows (queries x heads of the group) of a task: enough to pay for widening a key block, few enough to
// stay in L2 and to keep all threads busy. No result depends on it.
constexpr int64_t kMostTaskRows = 192, kFewestTaskRows = 48;

}  // namespace

void CpuOps::Attention(absl::Span<const AttentionArgs> sequences) {
  int64_t all_rows = 0;
  for (const AttentionArgs& a : sequences) {
    CheckAttention(a);
    SLUICE_CHECK(a.out.dtype == DType::kF32);
    all_rows += a.q.shape[0] * a.q.shape[1];
  }
  const int task_rows =
      static_cast<int>(std::clamp(all_rows / (4 * pool_.threads()), kFewestTaskRows, kMostTaskRows));
  size_t scratch_bytes = 0;
  int tasks = 0;
  for (const AttentionArgs& a : sequences) {
    const int n = static_cast<int>(a.q.shape[0]), kv_heads = static_cast<int>(a.k.shape[0]);
    const int group = static_cast<int>(a.q.shape[1]) / kv_heads, per_task = std::max(1, task_rows / group);
    tasks += kv_heads * ((n + per_task - 1) / per_task);
    scratch_bytes = std::max(
        scratch_bytes, kernels_.attention->scratch_bytes(per_task * group, static_cast<int>(a.q.shape[2])));
  }
  ThreadScratch scratch;
  if (!ReserveThreadScratch(scratch_bytes, &scratch)) return;

  pool_.Run(tasks, [&](int task, int thread) {
    const AttentionArgs* a = sequences.data();
    int n, kv_heads, group, per_task, blocks;
    for (;; ++a) {
      n = static_cast<int>(a->q.shape[0]);
      kv_heads = static_cast<int>(a->k.shape[0]);
      group = static_cast<int>(a->q.shape[1]) / kv_heads;
      per_task = std::max(1, task_rows / group);
      blocks = (n + per_task - 1) / per_task;
      if (task < kv_heads * blocks) break;
      task -= kv_heads * blocks;
    }
    // Late queries see the most keys: they go first, so that threads finish together.
    const int head = task % kv_heads, first = (blocks - 1 - task / kv_heads) * per_task;
    const int window = a->lse.empty() ? 0 : static_cast<int>(a->lse.shape[1]);
    AttentionBlock block = {};
    block.q = Row<float>(a->q, first, head * group);
    block.q_row_stride = a->q.stride[0];
    block.n_queries = std::min(per_task, n - first);
    block.group = group;
    block.head_dim = static_cast<int>(a->q.shape[2]);
    block.bf16 = a->k.dtype == DType::kBF16;
    block.k = RowBytes(a->k, head, 0);
    block.v = RowBytes(a->v, head, 0);
    block.k_row_stride = a->k.stride[1];
    block.v_row_stride = a->v.stride[1];
    block.visible = static_cast<int>(a->k.shape[1]) - n + first + 1;
    if (a->sliding_window > 0) block.positions = Row<int32_t>(a->positions, head);
    block.sliding_window = a->sliding_window;
    block.out = Row<float>(a->out, first, head * group);
    block.out_row_stride = a->out.stride[0];
    const int lse_first =
        n - window - first;  // query of this block that is the window's first; may be negative
    block.lse_first = block.n_queries;
    if (window > 0 && lse_first < block.n_queries) {
      block.lse = Row<float>(a->lse, head * group);
      block.lse_head_stride = a->lse.stride[0];
      block.lse_first = std::max(0, lse_first);
      block.lse += block.lse_first - lse_first;
    }
    kernels_.attention->attention(block, scratch.of(thread));
  });
}

}  // namespace sluice
