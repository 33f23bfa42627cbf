#include "common/metrics/kv_transfer_metrics.h"

namespace sluice {
namespace {

Gauge RingSlots(MetricsRegistry* registry, const char* state) {
  return registry->AddGauge("sluice_kv_ring_slots", "Slots of this end's ring, by state.",
                            {{"state", state}});
}

}  // namespace

KvTransferMetrics::KvTransferMetrics(MetricsRegistry* registry,
                                     const std::vector<std::string>& failure_reasons)
    : in_flight(registry->AddGauge("sluice_kv_transfer_in_flight", "Hand-off attempts that have not ended.")),
      failures(registry->AddCounters("sluice_kv_transfer_failures_total",
                                     "Hand-off attempts that failed, as this end saw it.", "reason",
                                     failure_reasons)),
      ring_slots_free(RingSlots(registry, "free")),
      ring_slots_busy(RingSlots(registry, "busy")),
      ring_slots_quarantined(RingSlots(registry, "quarantined")),
      quarantine_oldest_seconds(
          registry->AddGauge("sluice_kv_quarantine_oldest_seconds",
                             "Age of the oldest slot in quarantine; 0 when there is none.")),
      lease_expired(registry->AddCounter("sluice_kv_lease_expired_total", "Leases that ran out.")) {}

}  // namespace sluice
