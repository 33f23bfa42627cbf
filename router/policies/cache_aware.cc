// Prefill: where the prompt would be computed first, when what a worker holds of it need not be: the home of
// its session, or who computed the same beginning for another one. A queue there that costs more than it
// saves sends the prompt elsewhere. Decode: as load_aware.
#include "router/policies/expected_time.h"

namespace sluice {
namespace {

class CacheAware final : public RoutePolicy {
 public:
  const char* name() const override { return "cache_aware"; }

  size_t Prefill(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return Soonest(PrefillSeconds(query, candidates, true), candidates);
  }

  size_t Decode(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return LoadAwarePolicy()->Decode(query, candidates);
  }
};

}  // namespace

const RoutePolicy* CacheAwarePolicy() {
  static const CacheAware policy;
  return &policy;
}

}  // namespace sluice
