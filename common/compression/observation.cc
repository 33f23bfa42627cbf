#include "common/compression/observation.h"

#include "common/base/status.h"

namespace sluice {

// Pooling follows the group sum, as in RocketKV's first stage; SnapKV and FastKV pool per query head.
absl::StatusOr<TensorView> ObservationScores(const LayerView& view, int window, const Pooling& pooling,
                                             Ops& ops, Workspace& workspace) {
  const int64_t held = view.q_window.shape[0];
  SLUICE_CHECK(window > 0 && window < view.n_tokens && window <= held);
  SLUICE_CHECK(view.window_lse.shape[1] == held);
  const int64_t heads = view.k.shape[0], n = view.n_tokens - window;

  WindowScoresArgs args;
  args.q = view.q_window.Slice(0, held - window, held);
  args.k = view.k;
  args.lse = view.window_lse.Slice(1, held - window, held);
  args.positions = view.positions;
  args.sliding_window = view.sliding_window;
  SLUICE_ASSIGN_OR_RETURN(args.scores, workspace.Take(DType::kF32, {heads, n}));
  SLUICE_ASSIGN_OR_RETURN(TensorView pooled, workspace.Take(DType::kF32, {heads, n}));
  ops.WindowScores(args);
  ops.Pool(args.scores, pooling, pooled);
  return pooled;
}

}  // namespace sluice
