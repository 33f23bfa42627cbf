// Propagation `rerun` (GemFilter, arXiv 2409.17422): the tokens that the end of the prompt attends to most in
// one early layer run through the whole model again as a prompt of their own, renumbered from 0, and decode
// goes on from there. Differs: the window is always among them (the paper may drop the last token itself, and
// with it what was asked for); by default rows are ranked by attention weights of the whole window, pooled by
// maximum over 15 rows. Raw scores, average pooling of 5 and a window of 1 are the paper's, but for the last
// token. The default layer is the model's own of tsp. The lowest row wins among equal scores.
#include "common/base/status.h"
#include "common/compression/propagation/observed_rows.h"
#include "common/compression/propagation/propagation_policy.h"

namespace sluice {
namespace {

class Rerun final : public PropagationPolicy {
 public:
  int window(const PropagationGate& gate) const override { return gate.observation.window; }
  bool restarts() const override { return true; }
  absl::Status Rows(const LayerView& view, const PropagationGate& gate, Ops& ops, Workspace& workspace,
                    TensorView* rows) const override {
    SLUICE_ASSIGN_OR_RETURN(*rows, ObservedRows(view, gate, ops, workspace));
    return absl::OkStatus();
  }
};

}  // namespace

const PropagationPolicy& RerunPropagation() {
  static const Rerun policy;
  return policy;
}

}  // namespace sluice
