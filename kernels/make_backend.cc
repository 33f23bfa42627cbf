#include "kernels/make_backend.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_backend.h"

namespace sluice {

int CountGpus() { return CountCudaDevices().value_or(0); }

namespace {

// The first GPU of what `device` names; none for the CPU.
absl::StatusOr<std::optional<int>> FirstGpu(absl::string_view device) {
  if (device == "cpu") return std::nullopt;
  if (device == "auto") return CountGpus() > 0 ? std::optional<int>(0) : std::nullopt;
  absl::string_view number = device;
  int index = 0;
  if (device == "cuda" || (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &index)))
    return index;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown device \"", device, "\": use auto, cpu, cuda or cuda:<index>"));
}

}  // namespace

std::vector<std::string> GpuAddresses(absl::string_view device, int ranks) {
  std::vector<std::string> addresses;
  const absl::StatusOr<std::optional<int>> first = FirstGpu(device);
  if (!first.ok() || !first->has_value()) return addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    absl::StatusOr<std::string> address = CudaPciAddress(**first + rank);
    if (address.ok()) addresses.push_back(*std::move(address));
  }
  return addresses;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view device, const CpuOptions& cpu) {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> gpu, FirstGpu(device));
  return gpu ? NewCudaBackend(*gpu) : NewCpuBackend(cpu);
}

absl::StatusOr<std::unique_ptr<BackendGroup>> MakeBackendGroup(absl::string_view device,
                                                               const CpuOptions& cpu, int ranks) {
  if (ranks > 1) {
    PrepareForRanks();
    SLUICE_ASSIGN_OR_RETURN(const std::optional<int> gpu, FirstGpu(device));
    return gpu ? NewCudaGroup(*gpu, ranks) : NewCpuGroup(cpu, ranks);
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> only, MakeBackend(device, cpu));
  return std::make_unique<BackendGroup>(std::move(only));
}

}  // namespace sluice
