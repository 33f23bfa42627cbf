#include "common/engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <ranges>

namespace sluice {

TokenLogprobs LogprobsOf(absl::Span<const float> logits, int32_t chosen, int top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - largest);
  const double log_sum = std::log(sum);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - largest - log_sum);
  };

  TokenLogprobs out;
  out.chosen = logprob(chosen);
  const auto vocab = static_cast<int32_t>(logits.size());
  out.top_ids.resize(std::clamp(top, 0, vocab));
  const auto ids = std::views::iota(int32_t{0}, vocab);
  std::partial_sort_copy(
      ids.begin(), ids.end(), out.top_ids.begin(), out.top_ids.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  out.top.reserve(out.top_ids.size());
  for (int32_t id : out.top_ids) out.top.push_back(logprob(id));
  return out;
}

}  // namespace sluice
