#include "router/policies/expected_time.h"

#include <algorithm>
#include <tuple>

namespace sluice {
namespace {

constexpr double kNoise = 1.05;

double MeanRate(absl::Span<const Candidate> candidates) {
  double sum = 0;
  int known = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.tokens_per_second;
    known += candidate.tokens_per_second > 0;
  }
  return known == 0 ? 1 : sum / known;
}

}  // namespace

std::vector<double> PrefillSeconds(const RouteQuery& query, absl::Span<const Candidate> candidates,
                                   bool from_cache) {
  const double mean = MeanRate(candidates);
  std::vector<double> seconds;
  for (const Candidate& candidate : candidates) {
    const int64_t held = from_cache ? candidate.cached_tokens : 0;
    const int64_t tokens = candidate.tokens + std::max<int64_t>(query.tokens - held, 0);
    const double rate = candidate.tokens_per_second;
    seconds.push_back(static_cast<double>(tokens) / (rate > 0 ? rate : mean));
  }
  return seconds;
}

size_t Soonest(absl::Span<const double> seconds, absl::Span<const Candidate> candidates) {
  const double enough = *std::min_element(seconds.begin(), seconds.end()) * kNoise;
  size_t best = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (seconds[i] > enough) continue;
    const auto load = [&](size_t of) {
      return std::make_tuple(candidates[of].bytes_in_flight, candidates[of].requests, seconds[of]);
    };
    if (best == candidates.size() || load(i) < load(best)) best = i;
  }
  return best;
}

}  // namespace sluice
