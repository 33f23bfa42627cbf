// Retention `snapkv` (SnapKV, arXiv 2404.14469, and RocketKV's first stage, arXiv 2502.14051 §3): per KV
// head, the rows that the observation window attends to most, and the window itself. Differs: one set per KV
// head instead of one per query head, rows ascending (page bounds want neighbours together), and the lowest
// row wins among equal scores.
#include "common/compression/retention/keep_observed.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

class SnapKv final : public RetentionPolicy {
 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    return KeepObserved(view, gate.observation, gate.budget, ops, workspace, plan);
  }
};

}  // namespace

const RetentionPolicy& SnapKvRetention() {
  static const SnapKv policy;
  return policy;
}

}  // namespace sluice
