// Role: how probable a token was to the model: log-softmax of its own logits, before penalties, masks and
// temperature, so that it says the same however the token was chosen. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

struct TokenLogprobs {
  float chosen = 0;  // of the token that was taken
  std::vector<int32_t> top_ids = {};
  std::vector<float> top = {};  // of each of them
};

// logits: none NaN or +inf, one above -inf. top: ids to list, best first, of equals the lower id; more than
// there are lists all.
TokenLogprobs LogprobsOf(absl::Span<const float> logits, int32_t chosen, int top);

}  // namespace sluice
