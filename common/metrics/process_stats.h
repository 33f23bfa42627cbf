// Role: what the kernel counts about this process, read from /proc.
// Threads: any.
#pragma once

#include <optional>

#include "absl/status/statusor.h"

namespace sluice {

// Of the process's network namespace.
struct NetworkStats {
  double received_bytes = 0, transmitted_bytes = 0;
};

struct ProcessStats {
  double resident_memory_bytes = 0;
  double cpu_seconds = 0;  // user and system
  double open_fds = 0, max_fds = 0;
  double start_time_seconds = 0;  // unix; the kernel knows the boot time to a second
  std::optional<NetworkStats> network;
};

absl::StatusOr<ProcessStats> ReadProcessStats();

}  // namespace sluice
