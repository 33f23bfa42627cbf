// Retention `h2o` (H2O, arXiv 2306.14048): the rows that all queries of the turn together attended to most,
// and the last rows. Differs: one causal cut after a dense prefill, as other systems benchmark it, where the
// paper goes on evicting while decoding; one set per KV head; sums in f32.
#include <algorithm>

#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

// Queries whose weights are made at a time.
constexpr int kQueries = 512;

class H2o final : public RetentionPolicy {
 public:
  int LeastBudget(const RetentionGate& gate) const override { return gate.recent + 1; }

 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    if (view.n_tokens <= gate.budget) return KeepAll(view, ops, workspace, plan);
    if (view.q_window.shape[0] < 1) return absl::InvalidArgumentError("h2o: no query is read");
    const int64_t heads = view.k.shape[0], n = view.n_tokens - gate.recent;
    SLUICE_ASSIGN_OR_RETURN(TensorView scores, workspace.Take(DType::kF32, {heads, n}));
    SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, gate.budget}));
    plan->kept.assign(heads, gate.budget);
    AddUpColumns(view, gate.observation.round_weights, ops, scores);
    ops.SelectTop(scores, gate.budget - gate.recent, gate.recent, plan->rows);
    return absl::OkStatus();
  }

  // The last queries come first: they see every row, and so they write every score.
  static void AddUpColumns(const LayerView& view, bool round_weights, Ops& ops, TensorView scores) {
    const int64_t held = view.q_window.shape[0], before = view.n_tokens - held;
    for (int64_t end = held; end > 0; end -= std::min<int64_t>(end, kQueries)) {
      const int64_t begin = std::max<int64_t>(end - kQueries, 0), seen = before + end;
      WindowScoresArgs args = ScoresOfQueries(view, begin, end);
      args.k = view.k.Slice(1, 0, seen);
      args.positions = view.positions.Slice(1, 0, seen);
      args.scores = scores.Slice(1, 0, std::min(scores.shape[1], seen));
      args.round_weights = round_weights;
      args.accumulate = end < held;
      ops.WindowScores(args);
    }
  }
};

}  // namespace

const RetentionPolicy& H2oRetention() {
  static const H2o policy;
  return policy;
}

}  // namespace sluice
