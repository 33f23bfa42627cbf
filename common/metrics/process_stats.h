// Role: what the kernel counts about this process, read from /proc.
// Threads: any.
#pragma once

#include "absl/status/statusor.h"

namespace sluice {

struct ProcessStats {
  double resident_memory_bytes = 0;
  double cpu_seconds = 0;  // user and system
  double open_fds = 0;
  double start_time_seconds = 0;  // unix; the kernel knows the boot time to a second
};

absl::StatusOr<ProcessStats> ReadProcessStats();

}  // namespace sluice
