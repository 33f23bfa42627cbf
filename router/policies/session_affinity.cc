// A session goes to the prefill worker that holds its history; all else goes where least is to do.
#include "router/policies/route_policy.h"

namespace sluice {
namespace {

class SessionAffinity final : public RoutePolicy {
 public:
  const char* name() const override { return "session_affinity"; }

  size_t Prefill(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    if (query.home.has_value()) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        const Candidate& candidate = candidates[i];
        if (candidate.name == query.home->worker && candidate.incarnation == query.home->incarnation)
          return i;
      }
    }
    return LeastLoadedPolicy()->Prefill(query, candidates);
  }

  size_t Decode(const RouteQuery& query, absl::Span<const Candidate> candidates) const override {
    return LeastLoadedPolicy()->Decode(query, candidates);
  }
};

}  // namespace

const RoutePolicy* SessionAffinityPolicy() {
  static const SessionAffinity policy;
  return &policy;
}

}  // namespace sluice
