// Retention `adakv` (Ada-KV, arXiv 2407.11550): the budgets of a layer's KV heads are shared out by where its
// best scores lie; every head keeps a floor. Differs: the heads' rows sum to the layer's budget exactly, and
// under tensor parallelism the heads of one rank share their budgets among themselves.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/keep_observed.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

// wins[h]: rows of head h among the layer's best. Rows each head keeps beside the window, `each` on average.
std::vector<int> ShareOut(const std::vector<int>& wins, int each, float floor, int most) {
  std::vector<int> rows, order(wins.size());
  int left = each * static_cast<int>(wins.size());
  for (int n : wins) {
    const double share = std::nearbyint(n * (1.0 - floor) + std::floor(each * static_cast<double>(floor)));
    rows.push_back(std::min(static_cast<int>(share), most));
    left -= rows.back();
  }
  // What rounding and the bound left over goes to the heads with most wins, and is taken from them.
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return wins[a] > wins[b]; });
  for (int head : order) {
    const int change = std::clamp(left, -rows[head], most - rows[head]);
    rows[head] += change;
    left -= change;
  }
  return rows;
}

class AdaKv final : public RetentionPolicy {
 public:
  int MaxKept(const RetentionGate& gate, LayerId, int n_tokens) const override {
    return std::min(gate.most, n_tokens);
  }

 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    if (view.n_tokens <= gate.budget) return KeepAll(view, ops, workspace, plan);
    const int window = gate.observation.window, each = gate.budget - window;
    if (each == 0) return KeepObserved(view, gate.observation, gate.budget, ops, workspace, plan);
    SLUICE_ASSIGN_OR_RETURN(TensorView scores, ObservationScores(view, gate.observation, ops, workspace));
    const int64_t heads = scores.shape[0], n = scores.shape[1];
    SLUICE_ASSIGN_OR_RETURN(TensorView best, workspace.Take(DType::kI32, {1, heads * each}));
    ops.SelectTop(TensorView::Contiguous(scores.data, DType::kF32, {1, heads * n}),
                  static_cast<int>(heads * each), 0, best);
    std::vector<int32_t> winners(heads * each);
    ops.CopyOut(best, winners.data());
    SLUICE_RETURN_IF_ERROR(ops.Sync());
    std::vector<int> wins(heads);
    for (int32_t winner : winners) ++wins[winner / n];

    const int most = std::min(gate.most, view.n_tokens) - window;
    plan->kept = ShareOut(wins, each, gate.floor, most);
    SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, most + window}));
    for (int64_t head = 0; head < heads; ++head) {
      int& kept = plan->kept[head];
      ops.SelectTop(scores.Slice(0, head, head + 1), kept, window,
                    plan->rows.Slice(0, head, head + 1).Slice(1, 0, kept + window));
      kept += window;
    }
    return absl::OkStatus();
  }
};

}  // namespace

const RetentionPolicy& AdaKvRetention() {
  static const AdaKv policy;
  return policy;
}

}  // namespace sluice
