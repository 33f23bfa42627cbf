#include "common/metrics/gpu_stats.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// NVML's interface, as far as it is used: every call returns 0 when it worked.
using Device = void*;
struct Utilization {
  unsigned int gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;  // bytes
};
constexpr int kOnDie = 0;  // which thermometer

}  // namespace

struct GpuReader::Nvml {
  ~Nvml() {
    if (started) shut_down();
    if (handle != nullptr) dlclose(handle);
  }

  void* handle = nullptr;
  bool started = false;
  int (*start)() = nullptr;
  int (*shut_down)() = nullptr;
  int (*find)(const char* pci_address, Device*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*temperature)(Device, int thermometer, unsigned int*) = nullptr;
};

struct GpuReader::Gpu {
  std::string address;
  Device device;
};

GpuReader::GpuReader(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
GpuReader::~GpuReader() = default;

absl::StatusOr<std::unique_ptr<GpuReader>> GpuReader::Open(std::vector<std::string> pci_addresses,
                                                           const std::string& library) {
  auto nvml = std::make_unique<Nvml>();
  nvml->handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (nvml->handle == nullptr) return absl::FailedPreconditionError(absl::StrCat("no ", library));
  const auto bind = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(nvml->handle, symbol));
  };
  bind(nvml->start, "nvmlInit_v2");
  bind(nvml->shut_down, "nvmlShutdown");
  bind(nvml->find, "nvmlDeviceGetHandleByPciBusId_v2");
  bind(nvml->utilization, "nvmlDeviceGetUtilizationRates");
  bind(nvml->memory, "nvmlDeviceGetMemoryInfo");
  bind(nvml->temperature, "nvmlDeviceGetTemperature");
  if (nvml->start == nullptr || nvml->shut_down == nullptr || nvml->find == nullptr)
    return absl::FailedPreconditionError(absl::StrCat(library, " is not NVML"));
  if (const int error = nvml->start(); error != 0)
    return absl::FailedPreconditionError(absl::StrCat(library, ": nvmlInit_v2 answers ", error));
  nvml->started = true;
  std::unique_ptr<GpuReader> reader(new GpuReader(std::move(nvml)));
  for (std::string& address : pci_addresses) {
    Device device = nullptr;
    if (reader->nvml_->find(address.c_str(), &device) == 0)
      reader->gpus_.push_back({std::move(address), device});
  }
  return reader;
}

std::vector<GpuStats> GpuReader::Read() const {
  std::vector<GpuStats> all;
  for (const Gpu& gpu : gpus_) {
    GpuStats stats;
    stats.gpu = gpu.address;
    if (Utilization percent; nvml_->utilization != nullptr && nvml_->utilization(gpu.device, &percent) == 0)
      stats.utilization_ratio = percent.gpu / 100.0;
    if (Memory bytes; nvml_->memory != nullptr && nvml_->memory(gpu.device, &bytes) == 0) {
      stats.memory_used_bytes = static_cast<double>(bytes.used);
      stats.memory_total_bytes = static_cast<double>(bytes.total);
    }
    unsigned int degrees = 0;
    if (nvml_->temperature != nullptr && nvml_->temperature(gpu.device, kOnDie, &degrees) == 0)
      stats.temperature_celsius = degrees;
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace sluice
