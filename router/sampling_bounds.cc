#include "router/sampling_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "common/text/stop_matcher.h"

namespace sluice {
namespace {

constexpr int kMaxStopIds = 128;
constexpr int kMaxBiases = 1024;
constexpr int kMaxChoices = 8;

// A NaN is in no range.
absl::Status InRange(const char* field, bool in_range, float value, const char* range) {
  if (in_range) return absl::OkStatus();
  return BadField(field, absl::StrCat(value, " is not in ", range));
}

uint64_t RandomSeed() { return std::strtoull(RandomId128().substr(0, 16).c_str(), nullptr, 16); }

absl::Status CheckStops(const v1::Stopping& stopping) {
  if (stopping.has_max_tokens() && stopping.max_tokens() < 1) {
    return BadField("stopping.max_tokens", absl::StrCat(stopping.max_tokens(), " is below 1"));
  }
  if (stopping.min_tokens() < 0) {
    return BadField("stopping.min_tokens", absl::StrCat(stopping.min_tokens(), " is below 0"));
  }
  if (stopping.has_max_tokens() && stopping.min_tokens() > stopping.max_tokens()) {
    return BadField("stopping.min_tokens", absl::StrCat(stopping.min_tokens(), " is above max_tokens"));
  }
  if (stopping.stop_size() > static_cast<int>(StopMatcher::kMaxStops)) {
    return BadField("stopping.stop", absl::StrCat(stopping.stop_size(), " strings; at most 16"));
  }
  for (const std::string& stop : stopping.stop()) {
    if (stop.empty()) return BadField("stopping.stop", "an empty string would stop at once; remove it");
    if (stop.size() > StopMatcher::kMaxStopBytes) {
      return BadField("stopping.stop", absl::StrCat("a string of ", stop.size(), " bytes; at most 256"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBias(const ServedModel& model, const v1::Sampling& sampling) {
  if (sampling.logit_bias_size() > kMaxBiases) {
    return BadField("sampling.logit_bias",
                    absl::StrCat(sampling.logit_bias_size(), " ids; at most ", kMaxBiases));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id < 0 || id >= model.shape.vocab) {
      return BadField("sampling.logit_bias",
                      absl::StrCat(id, " is not in the vocabulary [0, ", model.shape.vocab, ")"));
    }
    SLUICE_RETURN_IF_ERROR(InRange("sampling.logit_bias", bias >= -100 && bias <= 100, bias, "[-100, 100]"));
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(const ServedModel& model, const v1::Output& output) {
  const int top = output.top_logprobs(), most = model.description.max_logprobs();
  if (top < 0 || top > most) {
    return BadField("output.top_logprobs", absl::StrCat(top, " is not in [0, ", most,
                                                        "]; --max-logprobs of the router is the bound"));
  }
  if (output.has_top_logprobs() && !output.logprobs()) {
    return BadField("output.top_logprobs", "set output.logprobs with it");
  }
  return absl::OkStatus();
}

// After the stop ids are known.
absl::Status CheckForced(const ServedModel& model, const v1::Sampling& sampling, const v1::Stopping& stopping,
                         const internal::v1::SamplingParams& resolved) {
  const auto& forced = sampling.forced_token_ids();
  if (!forced.empty() && stopping.stop_size() > 0) {
    return BadField("stopping.stop", "would cut sampling.forced_token_ids; send one of the two");
  }
  for (int i = 0; i < forced.size(); ++i) {
    if (forced[i] < 0 || forced[i] >= model.shape.vocab) {
      return BadField("sampling.forced_token_ids",
                      absl::StrCat(forced[i], " is not in the vocabulary [0, ", model.shape.vocab, ")"));
    }
    const auto& stops = resolved.stop_token_ids();
    const bool may_stop = i + 1 == forced.size() && i + 1 > resolved.min_tokens();
    if (!may_stop && std::count(stops.begin(), stops.end(), forced[i]) > 0) {
      return BadField("sampling.forced_token_ids",
                      absl::StrCat(forced[i], " at place ", i,
                                   " would end the reply before its time; set stopping.ignore_eos, or force "
                                   "stop ids only last, and behind min_tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<internal::v1::SamplingParams> ResolveSampling(const ServedModel& model,
                                                             const v1::Sampling& sampling,
                                                             const v1::Stopping& stopping,
                                                             const v1::Output& output) {
  if (sampling.has_n() && (sampling.n() < 1 || sampling.n() > kMaxChoices)) {
    return BadField("sampling.n", absl::StrCat(sampling.n(), " is not in [1, ", kMaxChoices, "]"));
  }
  internal::v1::SamplingParams out;
  out.set_temperature(sampling.has_temperature() ? sampling.temperature() : 1.0f);
  out.set_top_k(sampling.top_k());
  out.set_top_p(sampling.has_top_p() ? sampling.top_p() : 1.0f);
  out.set_min_p(sampling.min_p());
  out.set_repetition_penalty(sampling.has_repetition_penalty() ? sampling.repetition_penalty() : 1.0f);
  out.set_presence_penalty(sampling.presence_penalty());
  out.set_frequency_penalty(sampling.frequency_penalty());
  out.set_seed(sampling.has_seed() ? sampling.seed() : RandomSeed());

  float t = out.temperature(), top_p = out.top_p(), min_p = out.min_p(),
        repetition = out.repetition_penalty();
  float presence = out.presence_penalty(), frequency = out.frequency_penalty();
  SLUICE_RETURN_IF_ERROR(InRange("sampling.temperature", t >= 0 && t <= 2, t, "[0, 2]"));
  SLUICE_RETURN_IF_ERROR(
      InRange("sampling.top_k", out.top_k() >= 0, out.top_k(), "[0, vocabulary]; 0 is off"));
  SLUICE_RETURN_IF_ERROR(InRange("sampling.top_p", top_p > 0 && top_p <= 1, top_p, "(0, 1]"));
  SLUICE_RETURN_IF_ERROR(InRange("sampling.min_p", min_p >= 0 && min_p < 1, min_p, "[0, 1)"));
  SLUICE_RETURN_IF_ERROR(InRange("sampling.repetition_penalty", repetition > 0 && std::isfinite(repetition),
                                 repetition, "(0, infinity)"));
  SLUICE_RETURN_IF_ERROR(
      InRange("sampling.presence_penalty", presence >= -2 && presence <= 2, presence, "[-2, 2]"));
  SLUICE_RETURN_IF_ERROR(
      InRange("sampling.frequency_penalty", frequency >= -2 && frequency <= 2, frequency, "[-2, 2]"));

  SLUICE_RETURN_IF_ERROR(CheckBias(model, sampling));
  *out.mutable_logit_bias() = sampling.logit_bias();
  SLUICE_RETURN_IF_ERROR(CheckStops(stopping));
  out.set_min_tokens(stopping.min_tokens());
  if (!stopping.ignore_eos()) {
    out.mutable_stop_token_ids()->Add(model.shape.eos_ids.begin(), model.shape.eos_ids.end());
  }
  if (stopping.stop_token_ids_size() > kMaxStopIds) {
    return BadField("stopping.stop_token_ids",
                    absl::StrCat(stopping.stop_token_ids_size(), " ids; at most 128"));
  }
  for (int32_t id : stopping.stop_token_ids()) {
    if (id < 0 || id >= model.shape.vocab) {
      return BadField("stopping.stop_token_ids",
                      absl::StrCat(id, " is not in the vocabulary [0, ", model.shape.vocab, ")"));
    }
    out.add_stop_token_ids(id);
  }
  SLUICE_RETURN_IF_ERROR(CheckForced(model, sampling, stopping, out));
  *out.mutable_forced_token_ids() = sampling.forced_token_ids();
  SLUICE_RETURN_IF_ERROR(CheckLogprobs(model, output));
  out.set_logprobs(output.logprobs());
  out.set_top_logprobs(output.top_logprobs());
  return out;
}

}  // namespace sluice
