#include "common/engine/retained_mass.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/compression/observation.h"

namespace sluice {

// Weights of a layer leave the device as one number per KV head and row; kept rows are added up here, in f64.
absl::Status RetainedMass::OnAttention(const LayerView& view, Ops& ops, Workspace& workspace) {
  const int64_t held = view.q_window.shape[0], window = std::min<int64_t>(kQueries, held);
  const int64_t heads = view.k.shape[0], n = view.n_tokens;
  WindowScoresArgs args = ScoresOfQueries(view, held - window, held);
  SLUICE_ASSIGN_OR_RETURN(args.scores, workspace.Take(DType::kF32, {heads, n}));
  scores_.resize(heads * n);
  ops.WindowScores(args);
  ops.CopyOut(args.scores, scores_.data());
  SLUICE_RETURN_IF_ERROR(ops.Sync());

  const int layer = view.layer.value();
  sums_[layer] = 0;
  for (int64_t h = 0; h < heads; ++h) {
    const float* const scores = scores_.data() + h * n;
    const double all = std::accumulate(scores, scores + n, 0.0);  // window * group, but for rounding
    if (!(all > 0 && std::isfinite(all))) return absl::InternalError("non-finite attention weights");
    double sum = 0;
    for (int32_t row : (*kept_)[layer * n_kv_heads_ + first_head_ + h]) {
      if (row < 0 || row >= n)
        return absl::InternalError(absl::StrCat("kept row ", row, ": the prompt has ", n));
      sum += scores[row];
    }
    sums_[layer] += sum / all;
  }
  return absl::OkStatus();
}

}  // namespace sluice
