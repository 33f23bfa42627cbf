#include "common/compression/retention/keep_all.h"

#include "common/base/status.h"

namespace sluice {

absl::Status KeepAll(const LayerView& view, Ops& ops, Workspace& workspace, LayerPlan* plan) {
  const int64_t heads = view.k.shape[0];
  SLUICE_ASSIGN_OR_RETURN(plan->rows, workspace.Take(DType::kI32, {heads, view.n_tokens}));
  plan->kept.assign(heads, view.n_tokens);
  // The tail of a selection from nothing.
  SLUICE_ASSIGN_OR_RETURN(TensorView none, workspace.Take(DType::kF32, {heads, 0}));
  ops.SelectTop(none, 0, view.n_tokens, plan->rows);
  return absl::OkStatus();
}

}  // namespace sluice
