// Role: what the driver counts about GPUs, read through NVML.
// Why it exists: NVML is opened when a GPU is there and not linked, so that binaries start without a driver,
// and no header of CUDA's is needed. Threads: Read may be called by any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// What the driver does not tell is absent.
struct GpuStats {
  std::string gpu;  // as it was asked for: a PCI address
  std::optional<double> utilization_ratio;
  std::optional<double> memory_used_bytes, memory_total_bytes;
  std::optional<double> temperature_celsius;
};

class GpuReader {
 public:
  // pci_addresses: "0000:17:00.0". FailedPrecondition: no NVML at `library`, or it will not start.
  static absl::StatusOr<std::unique_ptr<GpuReader>> Open(std::vector<std::string> pci_addresses,
                                                         const std::string& library);
  ~GpuReader();

  // Of each address that NVML knows.
  std::vector<GpuStats> Read() const;

 private:
  struct Nvml;
  struct Gpu;
  explicit GpuReader(std::unique_ptr<Nvml> nvml);
  const std::unique_ptr<Nvml> nvml_;
  std::vector<Gpu> gpus_;
};

}  // namespace sluice
