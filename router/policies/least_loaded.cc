// Prefill: fewest prompt tokens ahead, then fewest requests. Decode: fewest requests, then most free KV
// pages.
#include <algorithm>
#include <tuple>

#include "router/policies/route_policy.h"

namespace sluice {
namespace {

template <class Less>
size_t IndexOfBest(absl::Span<const Candidate> candidates, Less less) {
  return std::min_element(candidates.begin(), candidates.end(), less) - candidates.begin();
}

class LeastLoaded final : public RoutePolicy {
 public:
  const char* name() const override { return "least_loaded"; }

  size_t Prefill(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return IndexOfBest(candidates, [](const Candidate& a, const Candidate& b) {
      return std::tie(a.tokens, a.requests) < std::tie(b.tokens, b.requests);
    });
  }

  size_t Decode(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return IndexOfBest(candidates, [](const Candidate& a, const Candidate& b) {
      return std::tie(a.requests, b.pages_free) < std::tie(b.requests, a.pages_free);
    });
  }
};

}  // namespace

const RoutePolicy* LeastLoadedPolicy() {
  static const LeastLoaded policy;
  return &policy;
}

}  // namespace sluice
