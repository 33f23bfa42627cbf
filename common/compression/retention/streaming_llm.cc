// Retention `streaming_llm` (StreamingLLM, arXiv 2309.17453): the first rows, which soak up attention, and
// the last ones. Differs: the port that other systems benchmark, one cut after a dense prefill with keys at
// their original positions; the paper caches keys before RoPE, renumbers them, and goes on evicting while
// decoding.
#include <numeric>
#include <vector>

#include "common/base/status.h"
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

class StreamingLlm final : public RetentionPolicy {
 public:
  int window(const RetentionGate&) const override { return 0; }
  int LeastBudget(const RetentionGate& gate) const override { return gate.sinks + 1; }

 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    if (view.n_tokens <= gate.budget) return KeepAll(view, ops, workspace, plan);
    const int64_t heads = view.k.shape[0];
    std::vector<int32_t> rows(heads * gate.budget);
    for (int64_t h = 0; h < heads; ++h) {
      const auto head = rows.begin() + h * gate.budget;
      std::iota(head, head + gate.sinks, 0);
      std::iota(head + gate.sinks, head + gate.budget, view.n_tokens - (gate.budget - gate.sinks));
    }
    SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, gate.budget}));
    plan->kept.assign(heads, gate.budget);
    ops.CopyIn(rows.data(), plan->rows);
    return absl::OkStatus();
  }
};

}  // namespace

const RetentionPolicy& StreamingLlmRetention() {
  static const StreamingLlm policy;
  return policy;
}

}  // namespace sluice
