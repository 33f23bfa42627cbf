// Role: the shapes that rotation, attention and cache ops ask for, on every backend. A wrong one is a bug of
// the caller: these abort. Threads: pure functions.
#pragma once

#include "kernels/backend.h"
#include "kernels/limits.h"

namespace sluice {

void CheckRope(const TensorView& x, const TensorView& positions, const TensorView& cos_sin,
               const TensorView& shift);
void CheckStoreKv(const TensorView& k, const TensorView& v, const TensorView& k_out, const TensorView& v_out);
void CheckAttention(const AttentionArgs& args);
void CheckWindowScores(const WindowScoresArgs& args);
void CheckPagedKv(const PagedKv& cache);  // its tables
void CheckScatterKv(const TensorView& k, const TensorView& v, const PagedKv& cache, int slot, int kv_head,
                    int row_begin);
void CheckSumValues(const PagedKv& cache, int slot);
void CheckAppendKv(const TensorView& k, const TensorView& v, const PagedKv& cache);
void CheckDecode(const TensorView& q, const PagedKv& cache, const TensorView& out);
// The same of ops that read how slots select.
void CheckSelecting(const TensorView& q, const PagedKv& cache, const TensorView& out);

}  // namespace sluice
