// Kernels on a GPU: a body is captured into a graph, and the median of its replays is timed by events, beside
// the rates of a plain sweep over memory and of a large matrix product in the same process.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/bench/bench_device.h"

namespace sluice {
namespace {

__global__ void Sweep(const uint4* x, size_t n, unsigned* out) {
  constexpr int kDepth = 8;
  unsigned sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += kDepth * step) {
    uint4 v[kDepth];
#pragma unroll
    for (int j = 0; j < kDepth; ++j)
      v[j] = i + j * step < n ? __ldcs(x + i + j * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < kDepth; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 12345) *out = sum;  // never taken for our data, unknown to the compiler
}

void Must(cudaError_t error) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  SLUICE_CHECK(error == cudaSuccess);
}

class CudaBench final : public BenchDevice {
 public:
  explicit CudaBench(std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)), ops_(backend_->NewOps()) {
    Must(cudaEventCreate(&begin_));
    Must(cudaEventCreate(&end_));
    MeasureBandwidth();
    MeasureFlops();
  }
  Backend& backend() override { return *backend_; }
  Ops& ops() override { return *ops_; }
  double bandwidth() const override { return bandwidth_; }
  double flops() const override { return flops_; }
  std::string ceilings() const override {
    return absl::StrFormat("read %.0f GB/s, bf16 product 8192^3 %.0f TF/s", bandwidth_ / 1e9, flops_ / 1e12);
  }
  size_t cache_bytes() const override { return size_t{400} << 20; }

  double Time(const std::function<void()>& body) override {
    const cudaStream_t stream = static_cast<CudaOps&>(*ops_).stream();
    body();  // grows scratch memory and chooses algorithms
    SLUICE_CHECK(ops_->Sync().ok());
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    body();
    Must(cudaStreamEndCapture(stream, &graph));
    Must(cudaGraphInstantiate(&replay, graph, 0));
    auto run = [&](int times) {
      Must(cudaEventRecord(begin_, stream));
      for (int i = 0; i < times; ++i) Must(cudaGraphLaunch(replay, stream));
      Must(cudaEventRecord(end_, stream));
      Must(cudaEventSynchronize(end_));
      float ms = 0;
      Must(cudaEventElapsedTime(&ms, begin_, end_));
      return ms * 1e-3 / times;
    };
    const double once = run(2);
    const int times = static_cast<int>(std::clamp(0.004 / once, 1.0, 50.0));
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i) seconds.push_back(run(times));
    std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
    Must(cudaGraphExecDestroy(replay));
    Must(cudaGraphDestroy(graph));
    SLUICE_CHECK(ops_->Sync().ok());
    return seconds[4];
  }

 private:
  void MeasureBandwidth() {
    constexpr size_t kBytes = size_t{4} << 30;
    Buffer data = backend_->Allocate(kBytes).value();
    Must(cudaMemset(data.data(), 1, kBytes));
    const cudaStream_t stream = static_cast<CudaOps&>(*ops_).stream();
    const double seconds = Time([&] {
      Sweep<<<132 * 16, 256, 0, stream>>>(static_cast<const uint4*>(data.data()), kBytes / 16,
                                          static_cast<unsigned*>(data.data()));
    });
    bandwidth_ = kBytes / seconds;
  }
  void MeasureFlops() {
    constexpr int kN = 8192;
    uint32_t state = 1;
    auto w = backend_->PackMatrix(kN, kN, [&](int64_t begin, int64_t end, float* out) {
      for (int64_t i = 0; i < (end - begin) * kN; ++i)
        out[i] = (state = state * 1664525u + 1013904223u) / 4294967296.f - 0.5f;
      return absl::OkStatus();
    });
    std::vector<float> values(size_t{kN} * kN);
    for (float& x : values) x = (state = state * 1664525u + 1013904223u) / 4294967296.f - 0.5f;
    Buffer x = backend_->Allocate(values.size() * 4).value(),
           out = backend_->Allocate(values.size() * 4).value();
    const TensorView x_view = x.View(DType::kF32, {kN, kN}), to = out.View(DType::kF32, {kN, kN});
    ops_->CopyIn(values.data(), x_view);
    flops_ = 2.0 * kN * kN * kN / Time([&] { ops_->MatMul(x_view, **w, TensorView(), false, to); });
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
  cudaEvent_t begin_, end_;
  double bandwidth_ = 0, flops_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchDevice>> NewCudaBench() {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, NewCudaBackend(0));
  return std::unique_ptr<BenchDevice>(std::make_unique<CudaBench>(std::move(backend)));
}

}  // namespace sluice
