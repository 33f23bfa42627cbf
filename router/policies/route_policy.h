// Role: which prefill and which decode worker serve a request. Why abstract: places differ in what they
// optimise; a policy is one file and one line in policies.cc. Threads: stateless, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/session/session_store.h"

namespace sluice {

// A ready worker. Its load is the larger of what it reported last and of what this router gave it.
struct Candidate {
  std::string name;
  std::string incarnation;
  int requests = 0;        // running and queued
  int64_t tokens = 0;      // prompt tokens not yet prefilled (prefill only)
  int64_t pages_free = 0;  // KV pages (decode only)
};

struct RouteQuery {
  std::optional<SessionHome> home;  // the prefill worker that holds the session's history
};

class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  virtual const char* name() const = 0;
  // An index into `candidates`, which are sorted by name and never empty.
  virtual size_t Prefill(const RouteQuery& query, absl::Span<const Candidate> candidates) const = 0;
  virtual size_t Decode(const RouteQuery& query, absl::Span<const Candidate> candidates) const = 0;
};

// Every policy there is; the first is the default.
absl::Span<const RoutePolicy* const> RoutePolicies();
// Null: no such policy.
const RoutePolicy* FindRoutePolicy(absl::string_view name);

const RoutePolicy* SessionAffinityPolicy();
const RoutePolicy* LeastLoadedPolicy();

}  // namespace sluice
