// Role: how a token is chosen from a row of logits, and the choice itself on host memory. Why weights are
// whole numbers: their sums are exact in any order, so that every backend draws the same token. The order of
// steps is vLLM's: penalties, masking, temperature, min-p, top-k, top-p, draw. Threads: pure functions.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// A token that penalties know.
struct SeenToken {
  int32_t id = 0;
  int32_t count = 0;  // in the output; 0: only in the prompt
};

// A token's weight is floor(2^kWeightBits * exp((logit - largest logit) / temperature)); one of weight 0 is
// never drawn. "Better" is the larger logit, or of equals the lower id.
struct SampleRule {
  static constexpr int kWeightBits = 40;
  static constexpr double kNoWeight = -28;  // below this scaled distance from the best a weight is 0

  int row = 0;            // of the logits
  float temperature = 0;  // 0: the best token
  int top_k = 0;          // only the k best; 0: off
  float top_p = 1;        // only the fewest best tokens that have this share of what min_p and top_k left
  float min_p = 0;        // only tokens with this share of the best one's weight
  double uniform = 0;     // in [0, 1): the first token, by id, at which the sum of weights passes this share
  float repetition_penalty = 1;              // of every seen token: divides logits above 0, multiplies others
  float presence_penalty = 0;                // taken from the logit of every token with a count
  float frequency_penalty = 0;               // times its count
  absl::Span<const SeenToken> seen = {};     // distinct ids; those outside the vocabulary are ignored, here
  absl::Span<const int32_t> forbidden = {};  // and here
};

// The least weight of a token that may be drawn.
uint64_t LeastWeight(const SampleRule& rule);

// The token of the largest logit, or -1 as below.
int32_t BestToken(absl::Span<const float> logits);

// The token, or -1: a logit is NaN or +inf, or none is above -inf. Penalties and masks are written into
// `logits`.
int32_t SampleFrom(absl::Span<float> logits, const SampleRule& rule);

}  // namespace sluice
