// Retention `full`: every row leaves.
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

class Full final : public RetentionPolicy {
 public:
  int window(const RetentionGate&) const override { return 0; }
  int LeastBudget(const RetentionGate&) const override { return 0; }
  int MaxKept(const RetentionGate&, LayerId, int n_tokens) const override { return n_tokens; }

 private:
  absl::Status Choose(const LayerView& view, const RetentionGate&, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    return KeepAll(view, ops, workspace, plan);
  }
};

}  // namespace

const RetentionPolicy& FullRetention() {
  static const Full policy;
  return policy;
}

}  // namespace sluice
