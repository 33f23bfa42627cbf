#include "common/compression/retention/keep_observed.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/observation.h"
#include "common/compression/retention/keep_all.h"

namespace sluice {

absl::Status KeepObserved(const LayerView& view, const Observation& observation, int budget, Ops& ops,
                          Workspace& workspace, LayerPlan* plan) {
  if (view.n_tokens <= budget) return KeepAll(view, ops, workspace, plan);
  if (budget < observation.window) {
    return absl::InvalidArgumentError(
        absl::StrCat("retention: ", budget, " rows cannot hold the window of ", observation.window));
  }
  const int64_t heads = view.k.shape[0];
  SLUICE_ASSIGN_OR_RETURN(TensorView scores, ObservationScores(view, observation, ops, workspace));
  SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, budget}));
  plan->kept.assign(heads, budget);
  ops.SelectTop(scores, budget - observation.window, observation.window, plan->rows);
  return absl::OkStatus();
}

}  // namespace sluice
