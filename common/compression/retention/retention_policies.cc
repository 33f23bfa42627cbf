#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/compression/retention/retention_policy.h"

namespace sluice {

// Every retention method, each in the file of its name.
const RetentionPolicy& FullRetention();
const RetentionPolicy& SnapKvRetention();
const RetentionPolicy& StreamingLlmRetention();
const RetentionPolicy& ChunkKvRetention();
const RetentionPolicy& PyramidKvRetention();
const RetentionPolicy& AdaKvRetention();
const RetentionPolicy& H2oRetention();

absl::Status RetentionPolicy::Plan(const LayerView& view, const RetentionGate& gate, Ops& ops,
                                   Workspace& workspace, LayerPlan* plan) const {
  if (gate.budget < LeastBudget(gate)) {
    return absl::InvalidArgumentError(absl::StrCat("retention budget ", gate.budget,
                                                   ": this method's window, sinks or last rows need ",
                                                   LeastBudget(gate)));
  }
  return Choose(view, gate, ops, workspace, plan);
}

const RetentionPolicy& RetentionPolicyOf(RetentionKind kind) {
  switch (kind) {
    case RetentionKind::kFull:
      return FullRetention();
    case RetentionKind::kSnapKv:
      return SnapKvRetention();
    case RetentionKind::kStreamingLlm:
      return StreamingLlmRetention();
    case RetentionKind::kChunkKv:
      return ChunkKvRetention();
    case RetentionKind::kPyramidKv:
      return PyramidKvRetention();
    case RetentionKind::kAdaKv:
      return AdaKvRetention();
    case RetentionKind::kH2o:
      return H2oRetention();
  }
  std::abort();  // no such kind
}

}  // namespace sluice
