// Role: how much the end of the prompt attends to every row before it: what most methods rank by.
// Threads: stateless.
#pragma once

#include "absl/status/statusor.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

// The view's queries [begin, end) of q_window over all its rows; scores and switches are the caller's.
WindowScoresArgs ScoresOfQueries(const LayerView& view, int64_t begin, int64_t end);

// [n_kv_heads, n_tokens - window] f32, no gaps, from the workspace: softmax(q.k / sqrt(d)) of the last
// `window` queries, summed over them and over the query heads of a group, then pooled along the rows (or
// pooled first, then summed over the group). Of raw observations q.k itself. Rows of the window are not
// scored. InvalidArgument unless 0 < window < n_tokens and the view holds at least `window` queries.
absl::StatusOr<TensorView> ObservationScores(const LayerView& view, const Observation& observation, Ops& ops,
                                             Workspace& workspace);

}  // namespace sluice
