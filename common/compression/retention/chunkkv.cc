// Retention `chunkkv` (ChunkKV, arXiv 2502.00299): whole chunks of neighbouring rows, the best by their mean
// score, and the observation window. Differs: only rows before the window are cut into chunks, so that no
// chunk straddles its border; scores may be pooled first, without which a value that straddles two chunks
// loses the half that the window does not look at; the shorter last chunk ranks by its mean like the others;
// of the last chunk that the budget reaches, the first rows stay. One set per KV head, or one for all heads,
// which sum their scores, as kvpress has it (there with chunks of 20; whole chunks only, the window's among
// them, so that the window may be lost). Without pooling it is the paper's. Layers that reuse a leader's
// rows: see LayerView.
#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/retention/keep_all.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {
namespace {

class ChunkKv final : public RetentionPolicy {
 private:
  absl::Status Choose(const LayerView& view, const RetentionGate& gate, Ops& ops, Workspace& workspace,
                      LayerPlan* plan) const override {
    if (gate.chunk < 1) return absl::InvalidArgumentError("chunkkv: a chunk holds no row");
    if (view.n_tokens <= gate.budget) return KeepAll(view, ops, workspace, plan);
    if (view.leader != nullptr) {
      *plan = *view.leader;
      return absl::OkStatus();
    }
    SLUICE_ASSIGN_OR_RETURN(TensorView scores, ObservationScores(view, gate.observation, ops, workspace));
    const int64_t heads = scores.shape[0], n = scores.shape[1];
    if (gate.one_set) {
      SLUICE_ASSIGN_OR_RETURN(TensorView total, workspace.Take(DType::kF32, {1, n}));
      ops.SumHeads(scores, total.At(0));
      ops.AllReduce(total.At(0));  // over the heads of all ranks
      scores = total;
    }
    const int64_t sets = scores.shape[0];
    SLUICE_ASSIGN_OR_RETURN(TensorView means, workspace.Take(DType::kF32, {sets, n}));
    SLUICE_ASSIGN_OR_RETURN(TensorView rows, workspace.Take(DType::kI32, {sets, gate.budget}));
    ops.Pool(scores, {.kind = Pooling::kChunk, .kernel = gate.chunk}, means);
    ops.SelectTop(means, gate.budget - gate.observation.window, gate.observation.window, rows);
    rows.shape[0] = heads;
    if (gate.one_set) rows.stride[0] = 0;
    plan->rows = rows;
    plan->kept.assign(heads, gate.budget);
    return absl::OkStatus();
  }
};

}  // namespace

const RetentionPolicy& ChunkKvRetention() {
  static const ChunkKv policy;
  return policy;
}

}  // namespace sluice
