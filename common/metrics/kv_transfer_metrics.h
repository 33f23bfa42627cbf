// Role: what both ends of the KV hand-off measure. What only the sender knows (seconds, bytes, retries,
// probe) is in PrefillMetrics, what only the receiver knows in DecodeMetrics, so that a sum over all
// processes counts once. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "common/metrics/metrics.h"

namespace sluice {

struct KvTransferMetrics {
  // failure_reasons: the list is the hand-off's (common/handoff/result.h).
  KvTransferMetrics(MetricsRegistry* registry, const std::vector<std::string>& failure_reasons);

  Gauge in_flight;            // attempts between Offer and their terminal state
  Labeled<Counter> failures;  // reason
  Gauge ring_slots_free, ring_slots_busy, ring_slots_quarantined;
  Gauge quarantine_oldest_seconds;  // 0: nothing in quarantine
  Counter lease_expired;
};

}  // namespace sluice
