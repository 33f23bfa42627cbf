#include "common/rpc/sampling_codec.h"

namespace sluice {

internal::v1::SamplingParams SamplingToProto(const SamplingParams& params) {
  internal::v1::SamplingParams out;
  out.set_temperature(params.temperature);
  out.set_top_k(params.top_k);
  out.set_top_p(params.top_p);
  out.set_min_p(params.min_p);
  out.set_repetition_penalty(params.repetition_penalty);
  out.set_presence_penalty(params.presence_penalty);
  out.set_frequency_penalty(params.frequency_penalty);
  out.set_seed(params.seed);
  out.set_max_tokens(params.max_tokens);
  out.set_min_tokens(params.min_tokens);
  out.mutable_stop_token_ids()->Add(params.stop_ids.begin(), params.stop_ids.end());
  out.mutable_forced_token_ids()->Add(params.forced_ids.begin(), params.forced_ids.end());
  for (const TokenBias& bias : params.logit_bias) (*out.mutable_logit_bias())[bias.id] = bias.bias;
  out.set_logprobs(params.logprobs);
  out.set_top_logprobs(params.top_logprobs);
  return out;
}

SamplingParams SamplingFromProto(const internal::v1::SamplingParams& params) {
  SamplingParams out;
  out.temperature = params.temperature();
  out.top_k = params.top_k();
  out.top_p = params.top_p();
  out.min_p = params.min_p();
  out.repetition_penalty = params.repetition_penalty();
  out.presence_penalty = params.presence_penalty();
  out.frequency_penalty = params.frequency_penalty();
  out.seed = params.seed();
  out.max_tokens = params.max_tokens();
  out.min_tokens = params.min_tokens();
  out.stop_ids.assign(params.stop_token_ids().begin(), params.stop_token_ids().end());
  out.forced_ids.assign(params.forced_token_ids().begin(), params.forced_token_ids().end());
  for (const auto& [id, bias] : params.logit_bias()) out.logit_bias.push_back({id, bias});
  out.logprobs = params.logprobs();
  out.top_logprobs = params.top_logprobs();
  return out;
}

internal::v1::TokenLogprobs LogprobsToProto(const TokenLogprobs& logprobs) {
  internal::v1::TokenLogprobs out;
  out.set_chosen(logprobs.chosen);
  out.mutable_top_ids()->Add(logprobs.top_ids.begin(), logprobs.top_ids.end());
  out.mutable_top()->Add(logprobs.top.begin(), logprobs.top.end());
  return out;
}

}  // namespace sluice
