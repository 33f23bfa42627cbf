// Role: a GPU's queue of operations: one stream. Each op is in the file of its name; what they share is here.
// Nothing in an op waits for the GPU or reads its memory, and what scratch memory an op needs depends on
// shapes only: a step that ran once can be captured into a graph. Threads: as Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/pinned_ring.h"

namespace sluice {

// What ops must know of their GPU.
struct CudaDevice {
  int index = 0;
  int n_sms = 0;
  std::shared_ptr<const CublasLt> cublas;
};

class Linear;  // linear.h

class CudaOps final : public Ops {
 public:
  explicit CudaOps(const CudaDevice& device);
  ~CudaOps() override;

  // For what else must happen in order with the ops: captures, transfers.
  cudaStream_t stream() const { return stream_; }

  absl::Status Sync() override;
  void CopyIn(const void* host, TensorView dst) override;
  void CopyOut(TensorView src, void* host) override;
  void Copy(TensorView src, TensorView dst) override;
  void Embed(const Matrix& table, TensorView ids, TensorView out) override;
  void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) override;
  void MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) override;
  void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) override;
  void SwiGlu(TensorView gate_up, TensorView out) override;
  void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) override;
  void Attention(absl::Span<const AttentionArgs> sequences) override;
  void WindowScores(const WindowScoresArgs& args) override;
  void Pool(TensorView scores, const Pooling& pooling, TensorView out) override;
  void SumHeads(TensorView scores, TensorView out) override;
  void SelectTop(TensorView scores, int k, int tail, TensorView rows) override;
  void GatherRows(TensorView x, TensorView rows, TensorView out) override;
  void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows, absl::Span<const int> kept,
                TensorView k_out, TensorView v_out, TensorView positions_out) override;
  void ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                 int row_begin) override;
  void AppendKv(TensorView k, TensorView v, const PagedKv& cache) override;
  void PagedAttention(TensorView q, const PagedKv& cache, TensorView out) override;
  void HsaAttention(TensorView q, const PagedKv& cache, TensorView out) override;

 private:
  // Grow-only device memory, ordered with the stream.
  struct Memory {
    char* data = nullptr;
    size_t bytes = 0;
  };

  // Makes this queue's GPU the thread's: first thing of every op.
  void Begin();
  // Keeps the first error of the queue.
  void Keep(cudaError_t error, absl::string_view call);
  void Launched(absl::string_view op) { Keep(cudaGetLastError(), op); }
  // Scratch of the op at work; null (and an error for Sync) when the device has none left. Contents
  // undefined.
  char* Reserve(size_t bytes) { return Grow(&scratch_, bytes, false); }
  // `n` counters that are zero, and that the op leaves zero.
  unsigned* Counters(int64_t n) {
    return reinterpret_cast<unsigned*>(Grow(&counters_, n * sizeof(unsigned), true));
  }
  char* Grow(Memory* memory, size_t bytes, bool zeroed);

  const CudaDevice device_;
  cudaStream_t stream_ = nullptr;
  PinnedRing ring_;
  Memory scratch_, counters_;
  std::unique_ptr<Linear> linear_;
  absl::Status error_;
};

}  // namespace sluice
