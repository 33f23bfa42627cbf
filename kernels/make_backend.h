// Role: from the name of a device to its backend: the one place that knows all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/backend_group.h"
#include "kernels/cpu/cpu_backend.h"

namespace sluice {

// GPUs that "cuda:<index>" can name; 0 where there is none, or no driver, or the build has no CUDA.
int CountGpus();

// PCI addresses of the GPUs that `ranks` from `device` on are; empty: it names none.
std::vector<std::string> GpuAddresses(absl::string_view device, int ranks);

// device: "cpu", "cuda" (the first GPU), "cuda:<index>", or "auto": the first GPU, or the CPU where there is
// none. InvalidArgument: another name; FailedPrecondition: the machine lacks it.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view device, const CpuOptions& cpu);

// `ranks` devices for one model (tensor parallelism): the GPU that `device` names and those after it, or CPU
// ranks that share the threads. One rank is MakeBackend's.
absl::StatusOr<std::unique_ptr<BackendGroup>> MakeBackendGroup(absl::string_view device,
                                                               const CpuOptions& cpu, int ranks);

}  // namespace sluice
