#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sluice {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  uint64_t weight;
  float logit;
  int32_t id;
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

bool IsBad(float logit) { return std::isnan(logit) || logit == kInfinity; }

// A tiny repetition penalty may push a logit past the largest float.
float Penalized(float logit, float penalty) {
  constexpr double kMax = std::numeric_limits<float>::max();
  const double x = logit;
  return static_cast<float>(std::min(x > 0 ? x / penalty : x * penalty, kMax));
}

// What is bad stays bad.
void Adjust(absl::Span<float> logits, const SampleRule& rule) {
  auto adjusts = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < logits.size() && !IsBad(logits[id]);
  };
  for (const SeenToken& seen : rule.seen) {
    if (!adjusts(seen.id)) continue;
    float& logit = logits[seen.id];
    if (rule.repetition_penalty != 1) logit = Penalized(logit, rule.repetition_penalty);
    const float times = rule.frequency_penalty * static_cast<float>(seen.count);
    if (seen.count > 0) logit -= rule.presence_penalty + times;
  }
  for (int32_t id : rule.forbidden)
    if (adjusts(id)) logits[id] = -kInfinity;
}

uint64_t WeightOf(float logit, float largest, double per_temperature) {
  const double x = (static_cast<double>(logit) - largest) * per_temperature;
  if (x < SampleRule::kNoWeight) return 0;
  return static_cast<uint64_t>(std::ldexp(std::exp(x), SampleRule::kWeightBits));
}

std::vector<Candidate> Candidates(absl::Span<const float> logits, int top_k) {
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) all.push_back({0, logits[id], static_cast<int32_t>(id)});
  if (top_k > 0 && static_cast<size_t>(top_k) < all.size()) {
    std::nth_element(all.begin(), all.begin() + top_k, all.end(), Better);
    all.resize(top_k);
  }
  return all;
}

uint64_t TotalWeight(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// Keeps the fewest best candidates that have a share of p. Sorts piece by piece: they are mostly a tiny part
// of the vocabulary.
void KeepTopP(float p, std::vector<Candidate>& candidates) {
  const auto wanted = static_cast<uint64_t>(std::ceil(p * static_cast<double>(TotalWeight(candidates))));
  uint64_t sum = 0;
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

int32_t BestToken(absl::Span<const float> logits) {
  float best = -kInfinity;
  int32_t at = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (IsBad(logits[id])) return -1;
    if (logits[id] > best) {
      best = logits[id];
      at = static_cast<int32_t>(id);
    }
  }
  return at;
}

uint64_t LeastWeight(const SampleRule& rule) {
  const double share = std::ceil(std::ldexp(static_cast<double>(rule.min_p), SampleRule::kWeightBits));
  return std::max<uint64_t>(1, static_cast<uint64_t>(share));
}

int32_t SampleFrom(absl::Span<float> logits, const SampleRule& rule) {
  Adjust(logits, rule);
  const int32_t best = BestToken(logits);
  if (best < 0 || rule.temperature <= 0) return best;

  std::vector<Candidate> candidates = Candidates(logits, rule.top_k);
  const double per_temperature = 1 / static_cast<double>(rule.temperature);
  for (Candidate& c : candidates) c.weight = WeightOf(c.logit, logits[best], per_temperature);
  const uint64_t least = LeastWeight(rule);
  std::erase_if(candidates, [least](const Candidate& c) { return c.weight < least; });
  if (rule.top_p < 1) KeepTopP(rule.top_p, candidates);

  if (rule.top_k > 0 || rule.top_p < 1)  // else they never left their order
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const uint64_t total = TotalWeight(candidates);
  const auto share = static_cast<uint64_t>(rule.uniform * static_cast<double>(total));
  const uint64_t target = std::min(share, total - 1);
  uint64_t sum = 0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (sum > target) return c.id;
  }
  return -1;  // not reached: the best has a weight
}

}  // namespace sluice
