#include "kernels/op_checks.h"

#include "common/base/status.h"
#include "kernels/views.h"

namespace sluice {

void CheckRope(const TensorView& x, const TensorView& positions, const TensorView& cos_sin,
               const TensorView& shift) {
  SLUICE_CHECK(x.rank == 3);
  const int64_t n = x.shape[0], heads = x.shape[1], d = x.shape[2], context = cos_sin.shape[0];
  SLUICE_CHECK(Is(x, DType::kF32, {n, heads, d}) && d % 2 == 0 && Is(positions, DType::kI32, {n}));
  SLUICE_CHECK(Is(cos_sin, DType::kF32, {context, d}));
  SLUICE_CHECK(shift.empty() || Is(shift, DType::kF32, {heads, d}));
}

void CheckStoreKv(const TensorView& k, const TensorView& v, const TensorView& k_out,
                  const TensorView& v_out) {
  SLUICE_CHECK(k.rank == 3 && IsKvDType(k_out.dtype));
  const int64_t n = k.shape[0], heads = k.shape[1], d = k.shape[2];
  SLUICE_CHECK(Is(k, DType::kF32, {n, heads, d}) && Is(v, DType::kF32, {n, heads, d}));
  SLUICE_CHECK(Is(k_out, k_out.dtype, {heads, n, d}) && Is(v_out, k_out.dtype, {heads, n, d}));
}

void CheckAttention(const AttentionArgs& a) {
  const int64_t n = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[0], len = a.k.shape[1];
  SLUICE_CHECK(a.q.rank == 3 && a.k.rank == 3 && kv_heads > 0 && q_heads % kv_heads == 0);
  SLUICE_CHECK(d % 16 == 0 && n <= len && q_heads / kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(a.q, DType::kF32, {n, q_heads, d}) && a.q.stride[1] == d);
  SLUICE_CHECK(IsProductInput(a.out.dtype) && Is(a.out, a.out.dtype, {n, q_heads, d}) &&
               a.out.stride[1] == d);
  SLUICE_CHECK(IsKvDType(a.k.dtype) && Is(a.k, a.k.dtype, {kv_heads, len, d}));
  SLUICE_CHECK(Is(a.v, a.k.dtype, {kv_heads, len, d}));
  if (!a.lse.empty()) SLUICE_CHECK(Is(a.lse, DType::kF32, {q_heads, a.lse.shape[1]}) && a.lse.shape[1] <= n);
  if (a.sliding_window > 0) SLUICE_CHECK(Is(a.positions, DType::kI32, {kv_heads, len}));
}

void CheckWindowScores(const WindowScoresArgs& a) {
  const int64_t window = a.q.shape[0], q_heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[0], len = a.k.shape[1], rows = a.scores.shape[0], n = a.scores.shape[1];
  SLUICE_CHECK(a.q.rank == 3 && a.k.rank == 3 && kv_heads > 0 && q_heads % kv_heads == 0);
  SLUICE_CHECK(window <= len && n <= len && (rows == kv_heads || rows == q_heads));
  SLUICE_CHECK(d % 16 == 0 && q_heads / kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(a.q, DType::kF32, {window, q_heads, d}) && a.q.stride[1] == d);
  SLUICE_CHECK(IsKvDType(a.k.dtype) && Is(a.k, a.k.dtype, {kv_heads, len, d}));
  SLUICE_CHECK(a.raw || Is(a.lse, DType::kF32, {q_heads, window}));
  SLUICE_CHECK(Is(a.scores, DType::kF32, {rows, n}));
  if (a.sliding_window > 0) SLUICE_CHECK(Is(a.positions, DType::kI32, {kv_heads, len}));
}

void CheckPagedKv(const PagedKv& cache) {
  const int64_t n_slots = cache.kept_len.shape[0], heads = cache.n_kv_heads;
  SLUICE_CHECK(IsKvDType(cache.dtype) && heads > 0 && cache.head_dim % 16 == 0 && cache.head_dim > 0);
  SLUICE_CHECK(Is(cache.page_table, DType::kI32, {n_slots, heads, cache.page_table.shape[2]}));
  SLUICE_CHECK(Is(cache.kept_len, DType::kI32, {n_slots, heads}));
  SLUICE_CHECK(cache.row_begin.empty() || Is(cache.row_begin, DType::kI32, {n_slots, heads}));
  SLUICE_CHECK(cache.value_sums.empty() ||
               Is(cache.value_sums, DType::kF32, {n_slots, heads, cache.head_dim}));
  if (cache.hsa.empty()) return;
  SLUICE_CHECK(Is(cache.hsa, DType::kI32, {n_slots, 4}));
  SLUICE_CHECK(Is(cache.chunk_table, DType::kI32, {n_slots, heads, cache.chunk_table.shape[2]}));
}

void CheckScatterKv(const TensorView& k, const TensorView& v, const PagedKv& cache, int slot, int kv_head,
                    int row_begin) {
  CheckPagedKv(cache);
  const int64_t n = k.shape[0], d = cache.head_dim;
  SLUICE_CHECK(Is(k, cache.dtype, {n, d}) && Is(v, cache.dtype, {n, d}));
  SLUICE_CHECK(slot >= 0 && slot < cache.kept_len.shape[0] && kv_head >= 0 && kv_head < cache.n_kv_heads);
  SLUICE_CHECK(row_begin >= 0 && row_begin + n <= cache.page_table.shape[2] * PagedKv::kPageRows);
}

void CheckSumValues(const PagedKv& cache, int slot) {
  CheckPagedKv(cache);
  SLUICE_CHECK(!cache.value_sums.empty() && !cache.hsa.empty());
  SLUICE_CHECK(slot >= 0 && slot < cache.kept_len.shape[0]);
}

void CheckAppendKv(const TensorView& k, const TensorView& v, const PagedKv& cache) {
  CheckPagedKv(cache);
  const int64_t batch = k.shape[0], heads = cache.n_kv_heads, d = cache.head_dim;
  SLUICE_CHECK(Is(k, DType::kF32, {batch, heads, d}) && Is(v, DType::kF32, {batch, heads, d}));
  SLUICE_CHECK(Is(cache.slots, DType::kI32, {batch}));
}

void CheckSelecting(const TensorView& q, const PagedKv& cache, const TensorView& out) {
  CheckDecode(q, cache, out);
  SLUICE_CHECK(!cache.hsa.empty());
}

void CheckDecode(const TensorView& q, const PagedKv& cache, const TensorView& out) {
  CheckPagedKv(cache);
  const int64_t batch = q.shape[0], q_heads = q.shape[1], d = cache.head_dim;
  SLUICE_CHECK(q_heads % cache.n_kv_heads == 0 && q_heads / cache.n_kv_heads <= kMaxGroup);
  SLUICE_CHECK(Is(q, DType::kF32, {batch, q_heads, d}) && q.stride[1] == d);
  SLUICE_CHECK(IsProductInput(out.dtype) && Is(out, out.dtype, {batch, q_heads, d}) && out.stride[1] == d);
  SLUICE_CHECK(Is(cache.slots, DType::kI32, {batch}));
}

}  // namespace sluice
