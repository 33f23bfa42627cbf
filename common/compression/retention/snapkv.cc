// Retention `snapkv` (SnapKV, arXiv 2404.14469, and RocketKV's first stage, arXiv 2502.14051 §3): per KV
// head, the rows that the observation window attends to most, and the window itself. Differs: one set per KV
// head instead of one per query head, rows ascending (page bounds want neighbours together), and the lowest
// row wins among equal scores.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

class SnapKv final : public RetentionPolicy {
 public:
  int window(const RetentionGate& gate) const override { return gate.window; }
  int MaxKept(const RetentionGate& gate, int n_tokens) const override {
    return std::min(gate.budget, n_tokens);
  }
  absl::Status Plan(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                    LayerPlan* plan) const override {
    if (view.n_tokens <= gate.budget) return KeepAll(view, ops, workspace, plan);
    if (gate.window < 1 || gate.budget < gate.window) {
      return absl::InvalidArgumentError(
          absl::StrCat("snapkv: budget ", gate.budget, " cannot hold the window of ", gate.window));
    }
    const int64_t heads = view.k.shape[0];
    SLUICE_ASSIGN_OR_RETURN(TensorView scores,
                            ObservationScores(view, gate.window, gate.pooling, ops, workspace));
    SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, gate.budget}));
    plan->kept.assign(heads, gate.budget);
    ops.SelectTop(scores, gate.budget - gate.window, gate.window, plan->rows);
    return absl::OkStatus();
  }
};

}  // namespace

const RetentionPolicy& SnapKvRetention() {
  static const SnapKv policy;
  return policy;
}

}  // namespace sluice
