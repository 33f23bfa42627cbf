#include "router/policies/route_policy.h"

namespace sluice {

absl::Span<const RoutePolicy* const> RoutePolicies() {
  static const RoutePolicy* const kPolicies[] = {
      CacheAwarePolicy(),
      LoadAwarePolicy(),
      SessionAffinityPolicy(),
      LeastLoadedPolicy(),
  };
  return kPolicies;
}

const RoutePolicy* FindRoutePolicy(absl::string_view name) {
  for (const RoutePolicy* policy : RoutePolicies()) {
    if (name == policy->name()) return policy;
  }
  return nullptr;
}

}  // namespace sluice
