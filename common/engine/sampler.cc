#include "common/engine/sampler.h"

#include <algorithm>

#include "common/engine/philox.h"

namespace sluice {

SeenToken& SampleState::Entry(int32_t id) {
  const auto [place, fresh] = place_.try_emplace(id, seen_.size());
  if (fresh) seen_.push_back({.id = id});
  return seen_[place->second];
}

void SampleState::AddPrompt(absl::Span<const int32_t> ids) {
  for (int32_t id : ids) Entry(id);
}

void SampleState::AddOutput(int32_t id) { ++Entry(id).count; }

SampleRule RuleFor(const SamplingParams& params, const SampleState& state, int index) {
  SampleRule rule;
  rule.temperature = params.temperature;
  rule.top_k = params.top_k;
  rule.top_p = params.top_p;
  rule.min_p = params.min_p;
  rule.uniform = PhiloxUniform(params.seed, static_cast<uint64_t>(index));
  rule.repetition_penalty = params.repetition_penalty;
  rule.presence_penalty = params.presence_penalty;
  rule.frequency_penalty = params.frequency_penalty;
  const bool penalized =
      params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
  if (penalized) rule.seen = state.seen();
  if (index < params.min_tokens) rule.forbidden = params.stop_ids;
  return rule;
}

absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params,
                                    const SampleState& state, int index) {
  int32_t token;
  if (TakesBest(params, index)) {
    token = BestToken(logits);
  } else {
    std::vector<float> adjusted(logits.begin(), logits.end());
    for (const TokenBias& bias : params.logit_bias)
      if (bias.id >= 0 && static_cast<size_t>(bias.id) < adjusted.size()) adjusted[bias.id] += bias.bias;
    token = SampleFrom(absl::MakeSpan(adjusted), RuleFor(params, state, index));
  }
  if (token < 0) return absl::InternalError("non-finite logits");
  return token;
}

bool TakesBest(const SamplingParams& params, int index) {
  return params.temperature <= 0 && params.repetition_penalty == 1 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0 && params.logit_bias.empty() && index >= params.min_tokens;
}

std::optional<int32_t> ForcedToken(const SamplingParams& params, int index) {
  if (static_cast<size_t>(index) >= params.forced_ids.size()) return std::nullopt;
  return params.forced_ids[index];
}

StopReason CheckStop(int32_t id, const SamplingParams& params, int index) {
  if (std::find(params.stop_ids.begin(), params.stop_ids.end(), id) != params.stop_ids.end())
    return StopReason::kStopId;
  return index + 1 >= params.max_tokens ? StopReason::kLength : StopReason::kNone;
}

}  // namespace sluice
