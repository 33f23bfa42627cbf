// Propagation `tsp` (FastKV, arXiv 2502.01068, token-selective propagation): the rows that the observation
// window attends to most in one layer, over all its heads, and the window. They go on with their original
// positions. Differs: scores are pooled after the sum over a group (see observation.h), not per query head.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/propagation/propagation_policy.h"

namespace sluice {
namespace {

class Tsp final : public PropagationPolicy {
 public:
  int window(const PropagationGate& gate) const override { return gate.window; }
  absl::Status Rows(const LayerView& view, const PropagationGate& gate, Ops& ops, Workspace& workspace,
                    TensorView* rows) const override {
    if (gate.window < 1 || gate.rows < gate.window) {
      return absl::InvalidArgumentError(
          absl::StrCat("tsp: ", gate.rows, " rows cannot hold the window of ", gate.window));
    }
    SLUICE_ASSIGN_OR_RETURN(TensorView scores,
                            ObservationScores(view, gate.window, gate.pooling, ops, workspace));
    SLUICE_ASSIGN_OR_RETURN(TensorView total, workspace.Take(DType::kF32, {1, scores.shape[1]}));
    SLUICE_ASSIGN_OR_RETURN(TensorView selected, workspace.Take(DType::kI32, {1, gate.rows}));
    ops.SumHeads(scores, total.At(0));
    ops.AllReduce(total.At(0));  // over the heads of all ranks, so that all select the same rows
    ops.SelectTop(total, gate.rows - gate.window, gate.window, selected);
    *rows = selected.At(0);
    return absl::OkStatus();
  }
};

}  // namespace

const PropagationPolicy& TspPropagation() {
  static const Tsp policy;
  return policy;
}

}  // namespace sluice
