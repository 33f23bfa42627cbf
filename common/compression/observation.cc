#include "common/compression/observation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

WindowScoresArgs ScoresOfQueries(const LayerView& view, int64_t begin, int64_t end) {
  WindowScoresArgs args;
  args.q = view.q_window.Slice(0, begin, end);
  args.k = view.k;
  args.lse = view.window_lse.Slice(1, begin, end);
  args.positions = view.positions;
  args.sliding_window = view.sliding_window;
  return args;
}

// RocketKV's first stage pools the sum over a group, SnapKV and FastKV every query head.
absl::StatusOr<TensorView> ObservationScores(const LayerView& view, const Observation& observation, Ops& ops,
                                             Workspace& workspace) {
  const int window = observation.window;
  const int64_t held = view.q_window.shape[0];
  if (window < 1 || window >= view.n_tokens || window > held) {
    return absl::InvalidArgumentError(absl::StrCat("observation window ", window, ": not in 1 .. ",
                                                   std::min<int64_t>(held, view.n_tokens - 1)));
  }
  SLUICE_CHECK(view.window_lse.shape[1] == held);
  const int64_t heads = view.k.shape[0], group = view.q_window.shape[1] / heads, n = view.n_tokens - window;
  const bool per_head = observation.pool_per_head && group > 1;
  const int64_t pooled_heads = per_head ? heads * group : heads;

  WindowScoresArgs args = ScoresOfQueries(view, held - window, held);
  args.raw = observation.raw;
  args.round_weights = observation.round_weights;
  SLUICE_ASSIGN_OR_RETURN(args.scores, workspace.Take(DType::kF32, {pooled_heads, n}));
  SLUICE_ASSIGN_OR_RETURN(TensorView pooled, workspace.Take(DType::kF32, {pooled_heads, n}));
  ops.WindowScores(args);
  ops.Pool(args.scores, observation.pooling, pooled);
  if (!per_head) return pooled;
  SLUICE_ASSIGN_OR_RETURN(TensorView sums, workspace.Take(DType::kF32, {heads, n}));
  for (int64_t h = 0; h < heads; ++h) ops.SumHeads(pooled.Slice(0, h * group, (h + 1) * group), sums.At(h));
  return sums;
}

}  // namespace sluice
