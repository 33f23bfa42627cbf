#include "common/compression/propagation/observed_rows.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/observation.h"

namespace sluice {

absl::StatusOr<TensorView> ObservedRows(const LayerView& view, const PropagationGate& gate, Ops& ops,
                                        Workspace& workspace) {
  const int window = gate.observation.window;
  if (window < 1 || gate.rows < window) {
    return absl::InvalidArgumentError(
        absl::StrCat("propagation: ", gate.rows, " rows cannot hold the window of ", window));
  }
  SLUICE_ASSIGN_OR_RETURN(TensorView scores, ObservationScores(view, gate.observation, ops, workspace));
  SLUICE_ASSIGN_OR_RETURN(TensorView total, workspace.Take(DType::kF32, {1, scores.shape[1]}));
  SLUICE_ASSIGN_OR_RETURN(TensorView selected, workspace.Take(DType::kI32, {1, gate.rows}));
  ops.SumHeads(scores, total.At(0));
  ops.AllReduce(total.At(0));  // over the heads of all ranks, so that all select the same rows
  ops.SelectTop(total, gate.rows - window, window, selected);
  return selected.At(0);
}

}  // namespace sluice
