// Role: the metrics that more than one kind of process has: name, help and bounds stand once.
// Threads: as MetricsRegistry's Add methods.
#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace sluice::families {

Gauge InFlight(MetricsRegistry* registry, const std::string& stage);     // queued prefill transfer decode
Counter Cancelled(MetricsRegistry* registry, const std::string& stage);  // queued prefill transfer decode
Histogram QueueSeconds(MetricsRegistry* registry, const std::string& stage);  // router prefill decode
Histogram BatchSize(MetricsRegistry* registry);
Histogram StepSeconds(MetricsRegistry* registry);
Gauge KvBlocks(MetricsRegistry* registry, const std::string& state);
Gauge KvMemoryBytes(MetricsRegistry* registry, const std::string& stage, const std::string& kind);
Counter NonFiniteLogits(MetricsRegistry* registry);
Gauge LastForwardTimestampSeconds(MetricsRegistry* registry);
Gauge ModelLoadProgressRatio(MetricsRegistry* registry);
Gauge ModelLoadSeconds(MetricsRegistry* registry);
Gauge Ready(MetricsRegistry* registry);
// kind: "public", "internal". Only where there is one.
Gauge CertificateExpiryTimestampSeconds(MetricsRegistry* registry, const std::string& kind);

}  // namespace sluice::families
