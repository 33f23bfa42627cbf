#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/status.h"
#include "common/engine/philox.h"

namespace sluice {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Candidate {
  float weight;  // exp((logit - largest logit) / temperature): the best has 1
  int32_t id;
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

// A tiny repetition penalty may push a logit past the largest float.
float Finite(double logit) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::min(logit, kMax));
}

// The lowest id of the largest logit, or InternalError.
absl::StatusOr<int32_t> Best(absl::Span<const float> logits) {
  float best = kMinusInf;
  int32_t best_id = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id]) || logits[id] == -kMinusInf) return absl::InternalError("non-finite logits");
    if (logits[id] > best) {
      best = logits[id];
      best_id = static_cast<int32_t>(id);
    }
  }
  if (best_id < 0) return absl::InternalError("non-finite logits");
  return best_id;
}

std::vector<Candidate> Weigh(absl::Span<const float> logits, float largest, float temperature, float min_p) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const double scaled = (static_cast<double>(logits[id]) - largest) / temperature;
    const float weight = std::exp(static_cast<float>(scaled));
    if (weight > 0 && weight >= min_p) candidates.push_back({weight, static_cast<int32_t>(id)});
  }
  return candidates;
}

void KeepTopK(int k, std::vector<Candidate>& candidates) {
  if (k <= 0 || static_cast<size_t>(k) >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), Better);
  candidates.resize(k);
  std::sort(candidates.begin(), candidates.end(), Better);
}

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// Keeps the smallest set of best candidates whose share reaches p. Sorts piece by piece: the set is mostly a
// tiny part of the vocabulary.
void KeepTopP(float p, std::vector<Candidate>& candidates) {
  if (p >= 1) return;
  const double wanted = p * TotalWeight(candidates);
  double sum = 0;
  size_t sorted = 0;
  for (size_t piece = 64; sorted < candidates.size(); piece *= 4) {
    const size_t end = std::min(candidates.size(), sorted + piece);
    std::partial_sort(candidates.begin() + sorted, candidates.begin() + end, candidates.end(), Better);
    for (; sorted < end; ++sorted) {
      sum += candidates[sorted].weight;
      if (sum >= wanted) {
        candidates.resize(sorted + 1);
        return;
      }
    }
  }
}

}  // namespace

void SampleState::AddPrompt(absl::Span<const int32_t> ids) { seen_.insert(ids.begin(), ids.end()); }

void SampleState::AddOutput(int32_t id) {
  ++output_counts_[id];
  seen_.insert(id);
}

absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params,
                                    const SampleState& state, int index) {
  if (TakesBest(params, index)) return Best(logits);
  SLUICE_RETURN_IF_ERROR(Best(logits).status());
  std::vector<float> adjusted(logits.begin(), logits.end());
  const auto size = static_cast<int32_t>(adjusted.size());
  auto known = [size](int32_t id) { return id >= 0 && id < size; };

  if (params.repetition_penalty != 1) {
    const double penalty = params.repetition_penalty;
    for (int32_t id : state.seen_) {
      if (!known(id)) continue;
      const double logit = adjusted[id];
      adjusted[id] = Finite(logit > 0 ? logit / penalty : logit * penalty);
    }
  }
  for (auto [id, count] : state.output_counts_) {
    if (known(id)) adjusted[id] -= params.presence_penalty + params.frequency_penalty * count;
  }
  if (index < params.min_tokens) {
    for (int32_t id : params.stop_ids) {
      if (known(id)) adjusted[id] = kMinusInf;
    }
  }

  SLUICE_ASSIGN_OR_RETURN(const int32_t best, Best(adjusted));
  if (params.temperature <= 0) return best;
  std::vector<Candidate> candidates = Weigh(adjusted, adjusted[best], params.temperature, params.min_p);
  KeepTopK(params.top_k, candidates);
  KeepTopP(params.top_p, candidates);

  const double target = PhiloxUniform(params.seed, static_cast<uint64_t>(index)) * TotalWeight(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (target < sum) return c.id;
  }
  return candidates.back().id;
}

bool TakesBest(const SamplingParams& params, int index) {
  return params.temperature <= 0 && params.repetition_penalty == 1 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0 && index >= params.min_tokens;
}

StopReason CheckStop(int32_t id, const SamplingParams& params, int index) {
  if (std::find(params.stop_ids.begin(), params.stop_ids.end(), id) != params.stop_ids.end())
    return StopReason::kStopId;
  return index + 1 >= params.max_tokens ? StopReason::kLength : StopReason::kNone;
}

}  // namespace sluice
