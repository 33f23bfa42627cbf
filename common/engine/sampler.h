// Role: what a request says about the next token, as the rule by which a device draws it
// (kernels/sampling.h). Counter-based randomness (Philox 4x32-10) keyed by (seed, output index): no generator
// state travels from prefill to decode, and a replay draws the same numbers. Threads: a SampleState belongs
// to one sequence; functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/sampling.h"

namespace sluice {

struct TokenBias {
  int32_t id = 0;
  float bias = 0;  // added to its logit, before penalties; finite
};

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // over prompt and output, once per distinct id
  float presence_penalty = 0;    // over output
  float frequency_penalty = 0;   // over output
  uint64_t seed = 0;
  int max_tokens = 0;                      // total output tokens, those before a replay included
  int min_tokens = 0;                      // stop ids are masked before this many
  std::vector<int32_t> stop_ids = {};      // end-of-sequence ids and the request's own
  std::vector<TokenBias> logit_bias = {};  // distinct ids; such a request draws on the host
  // Output tokens from the first on, whatever the logits say.
  std::vector<int32_t> forced_ids = {};
  bool logprobs = false;  // tell of each token how probable it was (logprobs.h)
  int top_logprobs = 0;   // and of so many best ones
};

// What penalties need to know.
class SampleState {
 public:
  void AddPrompt(absl::Span<const int32_t> ids);  // only needed with a repetition penalty
  void AddOutput(int32_t id);

  absl::Span<const SeenToken> seen() const { return seen_; }

 private:
  SeenToken& Entry(int32_t id);
  std::vector<SeenToken> seen_;
  std::unordered_map<int32_t, size_t> place_;  // of an id in seen_
};

// How the token at output index `index` (0-based) is drawn, but for bias. Borrows from both; valid until they
// change.
SampleRule RuleFor(const SamplingParams& params, const SampleState& state, int index);

// The token that RuleFor draws from logits in host memory, to which the bias is added first.
// InternalError("non-finite logits") when a logit is NaN or +inf, or when none is above -inf.
absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params,
                                    const SampleState& state, int index);

// Whether the token at output index `index` is the one of the largest logit, whatever was said before.
bool TakesBest(const SamplingParams& params, int index);

// The token at output index `index` where it is not the model's to choose.
std::optional<int32_t> ForcedToken(const SamplingParams& params, int index);

// Does generation end with `id` as output `index`? kLength when max_tokens is reached.
enum class StopReason { kNone, kStopId, kLength };
StopReason CheckStop(int32_t id, const SamplingParams& params, int index);

}  // namespace sluice
