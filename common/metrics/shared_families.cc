#include "common/metrics/shared_families.h"

#include "common/metrics/buckets.h"

namespace sluice::families {

Gauge InFlight(MetricsRegistry* registry, const std::string& stage) {
  return registry->AddGauge("sluice_requests_in_flight", "Requests in this process, by stage.",
                            {{"stage", stage}});
}

Counter Cancelled(MetricsRegistry* registry, const std::string& stage) {
  return registry->AddCounter("sluice_cancelled_total", "Requests cancelled by the client, by stage.",
                              {{"stage", stage}});
}

Histogram QueueSeconds(MetricsRegistry* registry, const std::string& stage) {
  return registry->AddHistogram("sluice_queue_seconds", "Time a request waited in this process's queue.",
                                buckets::Queue(), {{"stage", stage}});
}

Histogram BatchSize(MetricsRegistry* registry) {
  return registry->AddHistogram("sluice_batch_size", "Sequences computed in one step.", buckets::BatchSize());
}

Histogram StepSeconds(MetricsRegistry* registry) {
  return registry->AddHistogram("sluice_step_seconds",
                                "Time of one step: on prefill one layer of a batch, on decode one token.",
                                buckets::Step());
}

Gauge KvBlocks(MetricsRegistry* registry, const std::string& state) {
  return registry->AddGauge("sluice_kv_blocks", "KV blocks by state.", {{"state", state}});
}

Gauge KvMemoryBytes(MetricsRegistry* registry, const std::string& stage, const std::string& kind) {
  return registry->AddGauge("sluice_kv_memory_bytes", "Memory held for KV, by what it holds.",
                            {{"stage", stage}, {"kind", kind}});
}

Counter NonFiniteLogits(MetricsRegistry* registry) {
  return registry->AddCounter("sluice_non_finite_logits_total", "Sequences ended by NaN or infinite logits.");
}

Gauge LastForwardTimestampSeconds(MetricsRegistry* registry) {
  return registry->AddGauge("sluice_last_forward_timestamp_seconds",
                            "End of the last forward pass, unix time.");
}

Gauge ModelLoadProgressRatio(MetricsRegistry* registry) {
  return registry->AddGauge("sluice_model_load_progress_ratio", "Share of the weights that is loaded.");
}

Gauge ModelLoadSeconds(MetricsRegistry* registry) {
  return registry->AddGauge("sluice_model_load_seconds", "Time the model took to load.");
}

Gauge Ready(MetricsRegistry* registry) {
  return registry->AddGauge("sluice_ready", "1 while this process takes requests.");
}

Gauge CertificateExpiryTimestampSeconds(MetricsRegistry* registry, const std::string& kind) {
  return registry->AddGauge("sluice_certificate_expiry_timestamp_seconds",
                            "When the own certificate expires, unix time.", {{"kind", kind}});
}

}  // namespace sluice::families
