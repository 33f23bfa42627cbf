// Retention `pyramidkv` (PyramidKV, arXiv 2406.02069): snapkv with more rows in low layers than in high ones,
// falling by the same step from each to the next. Differs: the mean over the layers is the budget exactly,
// where whole steps would exceed it by up to an eighth (algorithms.md §11); one set per KV head.
#include <algorithm>

#include "common/compression/retention/keep_observed.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

int Rows(const RetentionGate& gate, LayerId layer) {
  return gate.top - layer.value() * gate.step - (layer.value() < gate.shorter ? 1 : 0);
}

class PyramidKv final : public RetentionPolicy {
 public:
  int MaxKept(const RetentionGate& gate, LayerId layer, int n_tokens) const override {
    return std::min(Rows(gate, layer), n_tokens);
  }

 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    return KeepObserved(view, gate.observation, Rows(gate, view.layer), ops, workspace, plan);
  }
};

}  // namespace

const RetentionPolicy& PyramidKvRetention() {
  static const PyramidKv policy;
  return policy;
}

}  // namespace sluice
