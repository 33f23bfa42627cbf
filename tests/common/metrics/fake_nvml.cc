// A library with NVML's names, for gpu_stats_test: two GPUs, of which the second tells its memory only.
#include <cstring>

namespace {
int devices[2];
int running = 0;
}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++running;
  return 0;
}

int nvmlShutdown() {
  --running;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (running != 1) return 1;
  if (strcmp(address, "0000:17:00.0") == 0)
    *device = &devices[0];
  else if (strcmp(address, "0000:65:00.0") == 0)
    *device = &devices[1];
  else
    return 6;
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned int* gpu_and_memory) {
  if (device != &devices[0]) return 3;
  gpu_and_memory[0] = 42;
  gpu_and_memory[1] = 7;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  total_free_used[0] = 150000000000;
  total_free_used[2] = device == &devices[0] ? 60000000000 : 1000000000;
  total_free_used[1] = total_free_used[0] - total_free_used[2];
  return 0;
}

int nvmlDeviceGetTemperature(void* device, int thermometer, unsigned int* celsius) {
  if (device != &devices[0] || thermometer != 0) return 3;
  *celsius = 55;
  return 0;
}

}  // extern "C"
