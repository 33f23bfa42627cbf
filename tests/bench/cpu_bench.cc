// Kernels on the CPU: the best of many runs, beside the read bandwidth and the f32 multiply-add rate.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "tests/bench/bench_device.h"
#include "tests/bench/ceilings.h"

namespace sluice {
namespace {

class CpuBench final : public BenchDevice {
 public:
  CpuBench(CpuIsa isa, int threads) : threads_(threads) {
    CpuOptions options;
    options.isa = isa;
    options.threads = threads;
    backend_ = NewCpuBackend(options).value();
    ops_ = backend_->NewOps();
    bandwidth_ = MeasureReadBandwidth(threads);
    fma_rate_ = MeasureFmaRate(threads, isa != CpuIsa::kAvx2);
  }
  Backend& backend() override { return *backend_; }
  Ops& ops() override { return *ops_; }
  double bandwidth() const override { return bandwidth_; }
  double flops() const override { return fma_rate_; }
  std::string ceilings() const override {
    return absl::StrFormat("read %.1f GB/s, f32 multiply-add %.1f GF/s", bandwidth_ / 1e9, fma_rate_ / 1e9);
  }
  size_t cache_bytes() const override { return size_t{200} << 20; }

  // The shortest of many runs, within half a second or so.
  double Time(const std::function<void()>& body) override {
    body();
    double best = 1e30, begin = BenchSeconds(threads_);
    for (int i = 0; i < 3 || (BenchSeconds(threads_) - begin < 0.7 && i < 2000); ++i) {
      const double start = BenchSeconds(threads_);
      body();
      best = std::min(best, BenchSeconds(threads_) - start);
    }
    return best;
  }

 private:
  const int threads_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
  double bandwidth_, fma_rate_;
};

}  // namespace

std::unique_ptr<BenchDevice> NewCpuBench(CpuIsa isa, int threads) {
  return std::make_unique<CpuBench>(isa, threads);
}

}  // namespace sluice
