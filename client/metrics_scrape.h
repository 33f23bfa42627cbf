// Role: one gauge out of a server's /metrics. Threads: pure functions, but for the socket.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// The value of the first series called `name` in the text format of Prometheus.
std::optional<double> FindMetric(absl::string_view text, absl::string_view name);

// GET /metrics of 127.0.0.1:port; nothing while it does not answer within `timeout`.
std::optional<std::string> ScrapeMetrics(int port, absl::Duration timeout);

}  // namespace sluice
