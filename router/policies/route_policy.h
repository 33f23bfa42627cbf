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

// A ready worker. Its load: what it reported last, and what this router gave it.
struct Candidate {
  std::string name;
  std::string incarnation;
  int requests = 0;           // running and queued
  int reported_requests = 0;  // the same, as the worker said last
  // Prefill.
  int64_t tokens = 0;            // of prompts ahead, not yet computed
  int64_t cached_tokens = 0;     // of this prompt, which it holds
  int64_t bytes_in_flight = 0;   // kept KV that decode workers have not acknowledged
  double tokens_per_second = 0;  // measured over its last prompts; 0: none yet
  // Decode.
  int64_t pages_free = 0, pages_total = 0;  // of KV
  double seconds_per_token = 0;             // of its last replies; 0: none yet, or it has no request now
};

struct RouteQuery {
  std::optional<SessionHome> home;  // the prefill worker that holds the session's history
  int64_t tokens = 0;               // of the prompt
  int64_t history_tokens = 0;       // of them, those that home holds
  // Hashes of its blocks (prefix_table.h) where it may stand on what another session left. Borrowed.
  absl::Span<const uint64_t> prefix = {};
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

const RoutePolicy* CacheAwarePolicy();
const RoutePolicy* LoadAwarePolicy();
const RoutePolicy* SessionAffinityPolicy();
const RoutePolicy* LeastLoadedPolicy();

}  // namespace sluice
