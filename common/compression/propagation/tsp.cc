// Propagation `tsp` (FastKV, arXiv 2502.01068, token-selective propagation): the rows that the observation
// window attends to most in one layer, over all its heads, and the window. They go on with their original
// positions. FastKV pools per query head (see observation.h). Differs: the lowest row wins among equal
// scores; what later layers keep is bounded by the same budget in rows, where FastKV takes a share of the
// rows that entered, which is the same number up to rounding.
#include "common/base/status.h"
#include "common/compression/propagation/observed_rows.h"
#include "common/compression/propagation/propagation_policy.h"

namespace sluice {
namespace {

class Tsp final : public PropagationPolicy {
 public:
  int window(const PropagationGate& gate) const override { return gate.observation.window; }
  bool restarts() const override { return false; }
  absl::Status Rows(const LayerView& view, const PropagationGate& gate, Ops& ops, Workspace& workspace,
                    TensorView* rows) const override {
    SLUICE_ASSIGN_OR_RETURN(*rows, ObservedRows(view, gate, ops, workspace));
    return absl::OkStatus();
  }
};

}  // namespace

const PropagationPolicy& TspPropagation() {
  static const Tsp policy;
  return policy;
}

}  // namespace sluice
