// Role: the shapes that attention ops ask for, on every backend. A wrong one is a bug of the caller: these
// abort. Threads: pure functions.
#pragma once

#include "kernels/backend.h"
#include "kernels/limits.h"

namespace sluice {

void CheckAttention(const AttentionArgs& args);
void CheckWindowScores(const WindowScoresArgs& args);
void CheckPagedKv(const PagedKv& cache);  // its tables
void CheckDecode(const TensorView& q, const PagedKv& cache, const TensorView& out);

}  // namespace sluice
