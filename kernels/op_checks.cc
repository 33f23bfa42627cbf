#include "kernels/op_checks.h"

#include "common/base/status.h"
#include "kernels/views.h"

namespace sluice {

void CheckAttention(const AttentionArgs& a) {
  const int64_t n = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[0], len = a.k.shape[1];
  SLUICE_CHECK(a.q.rank == 3 && a.k.rank == 3 && kv_heads > 0 && q_heads % kv_heads == 0);
  SLUICE_CHECK(d % 16 == 0 && n <= len && q_heads / kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(a.q, DType::kF32, {n, q_heads, d}) && a.q.stride[1] == d);
  SLUICE_CHECK(Is(a.out, DType::kF32, {n, q_heads, d}) && a.out.stride[1] == d);
  SLUICE_CHECK(IsKvDType(a.k.dtype) && Is(a.k, a.k.dtype, {kv_heads, len, d}));
  SLUICE_CHECK(Is(a.v, a.k.dtype, {kv_heads, len, d}));
  if (!a.lse.empty()) SLUICE_CHECK(Is(a.lse, DType::kF32, {q_heads, a.lse.shape[1]}) && a.lse.shape[1] <= n);
  if (a.sliding_window > 0) SLUICE_CHECK(Is(a.positions, DType::kI32, {kv_heads, len}));
}

void CheckWindowScores(const WindowScoresArgs& a) {
  const int64_t window = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[0], len = a.k.shape[1], prefix = len - window;
  SLUICE_CHECK(a.q.rank == 3 && a.k.rank == 3 && kv_heads > 0 && q_heads % kv_heads == 0 && prefix >= 0);
  SLUICE_CHECK(d % 16 == 0 && q_heads / kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(a.q, DType::kF32, {window, q_heads, d}) && a.q.stride[1] == d);
  SLUICE_CHECK(IsKvDType(a.k.dtype) && Is(a.k, a.k.dtype, {kv_heads, len, d}));
  SLUICE_CHECK(Is(a.lse, DType::kF32, {q_heads, window}) && Is(a.scores, DType::kF32, {kv_heads, prefix}));
  if (a.sliding_window > 0) SLUICE_CHECK(Is(a.positions, DType::kI32, {kv_heads, len}));
}

void CheckPagedKv(const PagedKv& cache) {
  const int64_t n_slots = cache.kept_len.shape[0], heads = cache.n_kv_heads;
  SLUICE_CHECK(IsKvDType(cache.dtype) && heads > 0 && cache.head_dim % 16 == 0 && cache.head_dim > 0);
  SLUICE_CHECK(Is(cache.page_table, DType::kI32, {n_slots, heads, cache.page_table.shape[2]}));
  SLUICE_CHECK(Is(cache.kept_len, DType::kI32, {n_slots, heads}));
  SLUICE_CHECK(cache.row_begin.empty() || Is(cache.row_begin, DType::kI32, {n_slots, heads}));
  if (cache.hsa.empty()) return;
  SLUICE_CHECK(Is(cache.hsa, DType::kI32, {n_slots, 3}));
  SLUICE_CHECK(Is(cache.chunk_table, DType::kI32, {n_slots, heads, cache.chunk_table.shape[2]}));
}

void CheckDecode(const TensorView& q, const PagedKv& cache, const TensorView& out) {
  CheckPagedKv(cache);
  const int64_t batch = q.shape[0], q_heads = q.shape[1], d = cache.head_dim;
  SLUICE_CHECK(q_heads % cache.n_kv_heads == 0 && q_heads / cache.n_kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(q, DType::kF32, {batch, q_heads, d}) && q.stride[1] == d);
  SLUICE_CHECK(Is(out, DType::kF32, {batch, q_heads, d}) && out.stride[1] == d);
  SLUICE_CHECK(Is(cache.slots, DType::kI32, {batch}));
}

}  // namespace sluice
