#include <algorithm>
#include <cmath>

#include "common/compression/compression_spec.h"

namespace sluice {

// Half of the budget pays for scoring, half for exact attention. Page size and channels are balanced so that
// reading channels/head_dim of one page bound in `page` rows costs what the other half costs. A page wider
// than the remaining compression would ask for more channels than there are: it falls back to 1.
SelectionGate SplitHsa(int rows, int budget_tokens, int head_dim) {
  const double ratio = std::max(1.0, static_cast<double>(rows) / budget_tokens);
  SelectionGate gate{.kind = SelectionKind::kHsa};
  gate.page = static_cast<int>(std::ceil(std::sqrt(ratio)));
  if (gate.page > ratio) gate.page = 1;
  gate.channels = std::max(1, static_cast<int>(head_dim * gate.page / ratio));
  gate.tokens = budget_tokens / 2;
  return gate;
}

// RocketKV (arXiv 2502.14051) as its accuracy code computes it: int() truncates, and the floor of 2 m, which
// keeps room for the answer, comes before the second stage's ratio. The paper's formula has no floor.
RocketSplit SplitBudget(int prompt_tokens, int m, int budget_tokens, int context, int head_dim) {
  const double total = std::min(static_cast<double>(prompt_tokens) + m, static_cast<double>(context));
  const double ratio = std::max(1.0, total / budget_tokens);
  const double share = std::min(0.2 + 0.06 * std::log2(ratio), 0.8);  // stage one's part of log(ratio)
  RocketSplit split;
  split.cap = static_cast<int>(total / std::pow(ratio, share));
  split.cap = std::max(split.cap, static_cast<int>(std::min(2.0 * m, total)));
  split.prompt_budget = split.cap - m;
  split.selection = SplitHsa(split.cap, budget_tokens, head_dim);
  return split;
}

}  // namespace sluice
