// Role: a GPU's queue of operations: one stream. Each op is in the file of its name; what they share is here.
// Nothing in an op waits for the GPU or reads its memory, and what scratch memory an op needs depends on
// shapes only: a step that ran once can be captured into a graph. Threads: as Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "kernels/backend.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/device_waits.h"
#include "kernels/cuda/pinned_ring.h"

namespace sluice {

class GpuLink;            // nccl_link.h
class Linear;             // linear.h
enum class ChosenMethod;  // chosen_attention.cuh
struct ChosenArgs;        // chosen_attention.cuh

// What a queue owns on its GPU: memory that grows with use, in order with the stream, and what was prepared
// for shapes seen before. It outlives the Ops object, because a prefill pass makes a new one.
struct CudaQueue {
  // Grow-only device memory.
  struct Memory {
    char* data = nullptr;
    size_t bytes = 0;
  };

  explicit CudaQueue(std::shared_ptr<const CublasLt> cublas);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  cudaStream_t stream = nullptr;
  cudaEvent_t mark = nullptr;
  PinnedRing ring;
  Memory scratch, counters;
  int generation = 0;  // of that memory: recorded graphs hold its addresses
  std::unique_ptr<Linear> linear;
};

// Idle queues of one GPU. Threads: any.
class CudaQueuePool {
 public:
  std::unique_ptr<CudaQueue> Take();  // null: none idle
  void Give(std::unique_ptr<CudaQueue> queue);

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<CudaQueue>> idle_ ABSL_GUARDED_BY(mu_);
};

// What ops must know of their GPU.
struct CudaDevice {
  int index = 0;
  int n_sms = 0;
  std::shared_ptr<const CublasLt> cublas;
  std::shared_ptr<CudaQueuePool> queues;
  std::shared_ptr<DeviceWaits> waits;
  std::shared_ptr<GpuLink> link;  // to the other ranks; null: alone
  int rank = 0;
};

class CudaOps final : public Ops {
 public:
  explicit CudaOps(const CudaDevice& device);
  ~CudaOps() override;

  // For what else must happen in order with the ops: captures, transfers.
  cudaStream_t stream() const { return stream_; }

  absl::Status Sync() override;
  void Mark() override;
  absl::Status Await() override;
  absl::Status Replay(const std::vector<int>& key, const std::function<absl::Status()>& enqueue) override;
  void CopyIn(const void* host, TensorView dst) override;
  void CopyOut(TensorView src, void* host) override;
  void Copy(TensorView src, TensorView dst) override;
  void CopyEach(absl::Span<const CopyArgs> copies) override;
  void Embed(const Matrix& table, TensorView ids, TensorView out) override;
  void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) override;
  void MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) override;
  void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) override;
  void SwiGlu(TensorView gate_up, TensorView out) override;
  void RotatedMatMul(TensorView x, const Matrix& w, TensorView bias, TensorView out, TensorView heads,
                     TensorView positions, TensorView cos_sin, TensorView shift) override;
  void GatedMatMul(TensorView x, const Matrix& w, TensorView gate_up, TensorView out) override;
  void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) override;
  void Attention(absl::Span<const AttentionArgs> sequences) override;
  void WindowScores(const WindowScoresArgs& args) override;
  void Pool(TensorView scores, const Pooling& pooling, TensorView out) override;
  void Checksum(TensorView words, TensorView out) override;
  void SumHeads(TensorView scores, TensorView out) override;
  void AllReduce(TensorView x) override;
  void ArgMax(TensorView x, TensorView out) override;
  void Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) override;
  void SelectTop(TensorView scores, int k, int tail, TensorView rows) override;
  void GatherRows(TensorView x, TensorView rows, TensorView out) override;
  void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows, absl::Span<const int> kept,
                TensorView k_out, TensorView v_out, TensorView positions_out) override;
  void ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                 int row_begin) override;
  void SumValues(const PagedKv& cache, int slot) override;
  void AppendKv(TensorView k, TensorView v, const PagedKv& cache) override;
  void PagedAttention(TensorView q, const PagedKv& cache, TensorView out) override;
  void HsaAttention(TensorView q, const PagedKv& cache, TensorView out) override;
  void QuestAttention(TensorView q, const PagedKv& cache, TensorView out) override;
  void SparqAttention(TensorView q, const PagedKv& cache, bool mean_value, TensorView out) override;
  void TopKAttention(TensorView q, const PagedKv& cache, bool per_group, TensorView out) override;

 private:
  // Makes this queue's GPU the thread's: first thing of every op.
  void Begin();
  // Keeps the first error of the queue.
  void Keep(cudaError_t error, absl::string_view call);
  void Launched(absl::string_view op) { Keep(cudaGetLastError(), op); }
  // Scratch of the op at work; null (and an error for Sync) when the device has none left. Contents
  // undefined.
  char* Reserve(size_t bytes) { return Grow(&queue_->scratch, bytes, false); }
  // `n` counters that are zero, and that the op leaves zero.
  unsigned* Counters(int64_t n) {
    return reinterpret_cast<unsigned*>(Grow(&queue_->counters, n * sizeof(unsigned), true));
  }
  char* Grow(CudaQueue::Memory* memory, size_t bytes, bool zeroed);

  // Attention over the rows that are best by the scores that `score` queues, for as many sequences at a time
  // as there is scratch memory for.
  using QueueScores = void (*)(const ChosenArgs& args, int n_sms, cudaStream_t stream);
  void AttendChosen(ChosenMethod method, TensorView q, const PagedKv& cache, TensorView out,
                    QueueScores score);

  // What a key's ops look like to the GPU. Queued one by one the first time, when scratch memory and
  // algorithms are found; recorded the second time.
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    int generation = -1;  // of the queue's memory when the ops ran last; -1: never
    int64_t used = 0;     // clock_ of the last call
  };
  static constexpr size_t kMaxGraphs = 64;
  absl::Status Record(Graph* graph, const std::function<absl::Status()>& enqueue);
  void ForgetGraphs();
  Graph* GraphOf(const std::vector<int>& key);

  const CudaDevice device_;
  std::unique_ptr<CudaQueue> queue_;
  cudaStream_t stream_;  // the queue's
  absl::Status error_;
  std::map<std::vector<int>, Graph> graphs_;
  int64_t clock_ = 0;
  int link_generation_ = 0;  // of graphs_
};

}  // namespace sluice
