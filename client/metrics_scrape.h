// Role: a server's /metrics, and one gauge out of it. Threads: pure functions, but for the socket.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// The value of the first series called `name` in the text format of Prometheus.
std::optional<double> FindMetric(absl::string_view text, absl::string_view name);

// GET /metrics of host:port; nothing while it does not answer within `timeout`.
std::optional<std::string> ScrapeMetrics(const std::string& address, absl::Duration timeout);

}  // namespace sluice
