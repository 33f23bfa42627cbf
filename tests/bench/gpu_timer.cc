#include <cuda_runtime_api.h>

#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/bench/op_timer.h"

namespace sluice {
namespace {

void Must(cudaError_t error) { SLUICE_CHECK(error == cudaSuccess); }

class GpuTimer final : public OpTimer {
 public:
  explicit GpuTimer(cudaStream_t stream) : stream_(stream) {}
  ~GpuTimer() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void Begin() override { Mark(); }
  void End() override { Mark(); }
  double Take() override {
    double seconds = 0;
    for (size_t i = 0; i + 1 < used_; i += 2) {
      float ms = 0;
      Must(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]));
      seconds += ms * 1e-3;
    }
    used_ = 0;
    return seconds;
  }

 private:
  void Mark() {
    if (used_ == events_.size()) Must(cudaEventCreate(&events_.emplace_back()));
    Must(cudaEventRecord(events_[used_++], stream_));
  }

  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;  // begin, end, begin, end, ...
  size_t used_ = 0;
};

}  // namespace

std::unique_ptr<OpTimer> NewGpuTimer(Ops& ops) {
  auto* gpu = dynamic_cast<CudaOps*>(&ops);
  return gpu == nullptr ? nullptr : std::make_unique<GpuTimer>(gpu->stream());
}

}  // namespace sluice
