// Role: the CPU's queue of operations. Ops run at once, inside the call, on the backend's thread pool; each
// is in the file of its name. What they share is here. Threads: as Ops; several queues share one pool.
#pragma once

#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_link.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice {

// Grow-only memory of a queue, 64-byte aligned.
class Scratch {
 public:
  char* Reserve(size_t bytes);  // null when the machine has no more; contents undefined

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

class CpuOps final : public Ops {
 public:
  // link: null for a backend that is alone.
  CpuOps(const IsaKernels& kernels, ThreadPool* pool, CpuLink* link, int rank)
      : kernels_(kernels), pool_(*pool), link_(link), rank_(rank) {}

  absl::Status Sync() override;
  absl::Status Replay(const std::vector<int>&, const std::function<absl::Status()>& enqueue) override {
    return enqueue();
  }
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
  // body(begin, end) over [0, n), in as many parts as the work is worth. cost: f32 values touched per item.
  template <class Body>
  void ForRange(int64_t n, int64_t cost, Body&& body) {
    constexpr int64_t kWorthATask = 16 << 10;
    int64_t parts = n * cost / kWorthATask;
    if (parts > 4 * pool_.threads()) parts = 4 * pool_.threads();
    if (parts > n) parts = n;
    if (parts < 2) {
      if (n > 0) body(int64_t{0}, n);
      return;
    }
    pool_.Run(static_cast<int>(parts),
              [&](int part, int) { body(n * part / parts, n * (part + 1) / parts); });
  }

  // `bytes` of memory for every thread, and for the whole op. Null (and an error for Sync) if there is none.
  struct ThreadScratch {
    char* base;
    size_t stride;
    char* of(int thread) const { return base + thread * stride; }
  };
  bool ReserveThreadScratch(size_t bytes, ThreadScratch* out);
  char* ReserveShared(size_t bytes);

  // A decode attention: sums over parts of rows are merged in ascending order, whatever the batch and the
  // threads.
  class DecodeSplit;

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  CpuLink* const link_;
  const int rank_;
  Scratch thread_scratch_, shared_scratch_;
  absl::Status error_;
};

}  // namespace sluice
