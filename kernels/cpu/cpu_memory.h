// Role: host memory of the CPU backend: aligned allocation, and how much the machine and our cgroup allow.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sluice {

// 64-byte aligned; from 2 MiB up in huge pages where the system grants them. ResourceExhausted names the
// bytes.
absl::StatusOr<Buffer> AllocateCpuMemory(size_t bytes);

// The smaller of /proc/meminfo and the memory limit of this process's cgroup (v2, or v1). root: "/", or a
// folder that stands for it in tests.
DeviceMemory ReadCpuMemory(const std::string& root);

}  // namespace sluice
