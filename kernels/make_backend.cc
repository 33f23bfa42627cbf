#include "kernels/make_backend.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/cuda/cuda_backend.h"

namespace sluice {

int CountGpus() { return CountCudaDevices().value_or(0); }

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view device, const CpuOptions& cpu) {
  if (device == "cpu") return NewCpuBackend(cpu);
  if (device == "auto") return CountGpus() > 0 ? NewCudaBackend(0) : NewCpuBackend(cpu);
  int index = 0;
  if (device == "cuda" || (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index)))
    return NewCudaBackend(index);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown device \"", device, "\": use auto, cpu, cuda or cuda:<index>"));
}

}  // namespace sluice
