#include "tests/bench/metered_backend.h"

#include <utility>

#include "tests/bench/ceilings.h"
#include "tests/bench/op_timer.h"

namespace sluice {
namespace {

// For queues whose ops are done when they return.
class WallTimer final : public OpTimer {
 public:
  void Begin() override { begin_ = BenchSeconds(0); }
  void End() override { seconds_ += BenchSeconds(0) - begin_; }
  double Take() override { return std::exchange(seconds_, 0); }

 private:
  double begin_ = 0, seconds_ = 0;
};

}  // namespace

class MeteredBackend::MeteredOps final : public Ops {
 public:
  MeteredOps(MeteredBackend* backend, std::unique_ptr<Ops> real)
      : backend_(backend), real_(std::move(real)), timer_(NewGpuTimer(*real_)) {
    if (timer_ == nullptr) timer_ = std::make_unique<WallTimer>();
  }

  absl::Status Sync() override {
    absl::Status status = real_->Sync();
    backend_->gate_seconds_ += timer_->Take();
    return status;
  }
  void Mark() override { real_->Mark(); }
  absl::Status Await() override { return real_->Await(); }
  absl::Status Replay(const std::vector<int>& key, const std::function<absl::Status()>& enqueue) override {
    return real_->Replay(key, enqueue);
  }

  void WindowScores(const WindowScoresArgs& args) override {
    Meter([&] { real_->WindowScores(args); });
  }
  void Pool(TensorView scores, const Pooling& pooling, TensorView out) override {
    Meter([&] { real_->Pool(scores, pooling, out); });
  }
  void Checksum(TensorView words, TensorView out) override { real_->Checksum(words, out); }
  void SumHeads(TensorView scores, TensorView out) override {
    Meter([&] { real_->SumHeads(scores, out); });
  }
  void SelectTop(TensorView scores, int k, int tail, TensorView rows) override {
    Meter([&] { real_->SelectTop(scores, k, tail, rows); });
  }
  void GatherRows(TensorView x, TensorView rows, TensorView out) override {
    Meter([&] { real_->GatherRows(x, rows, out); });
  }
  void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows, absl::Span<const int> kept,
                TensorView k_out, TensorView v_out, TensorView positions_out) override {
    Meter([&] { real_->GatherKv(k, v, positions, rows, kept, k_out, v_out, positions_out); });
  }

  void PagedAttention(TensorView q, const PagedKv& cache, TensorView out) override {
    if (!backend_->without_attention_) real_->PagedAttention(q, cache, out);
  }
  void HsaAttention(TensorView q, const PagedKv& cache, TensorView out) override {
    if (!backend_->without_attention_) real_->HsaAttention(q, cache, out);
  }
  void QuestAttention(TensorView q, const PagedKv& cache, TensorView out) override {
    if (!backend_->without_attention_) real_->QuestAttention(q, cache, out);
  }
  void SparqAttention(TensorView q, const PagedKv& cache, bool mean_value, TensorView out) override {
    if (!backend_->without_attention_) real_->SparqAttention(q, cache, mean_value, out);
  }
  void TopKAttention(TensorView q, const PagedKv& cache, bool per_group, TensorView out) override {
    if (!backend_->without_attention_) real_->TopKAttention(q, cache, per_group, out);
  }

  void CopyIn(const void* host, TensorView dst) override { real_->CopyIn(host, dst); }
  void CopyOut(TensorView src, void* host) override { real_->CopyOut(src, host); }
  void Copy(TensorView src, TensorView dst) override { real_->Copy(src, dst); }
  void CopyEach(absl::Span<const CopyArgs> copies) override { real_->CopyEach(copies); }
  void Embed(const Matrix& table, TensorView ids, TensorView out) override { real_->Embed(table, ids, out); }
  void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) override {
    real_->RmsNorm(x, weight, eps, out);
  }
  void MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) override {
    real_->MatMul(x, w, bias, accumulate, out);
  }
  void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) override {
    real_->Rope(x, positions, cos_sin, shift);
  }
  void SwiGlu(TensorView gate_up, TensorView out) override { real_->SwiGlu(gate_up, out); }
  void RotatedMatMul(TensorView x, const Matrix& w, TensorView bias, TensorView out, TensorView heads,
                     TensorView positions, TensorView cos_sin, TensorView shift) override {
    real_->RotatedMatMul(x, w, bias, out, heads, positions, cos_sin, shift);
  }
  void GatedMatMul(TensorView x, const Matrix& w, TensorView gate_up, TensorView out) override {
    real_->GatedMatMul(x, w, gate_up, out);
  }
  void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) override {
    real_->StoreKv(k, v, k_out, v_out);
  }
  void Attention(absl::Span<const AttentionArgs> sequences) override { real_->Attention(sequences); }
  void AllReduce(TensorView x) override { real_->AllReduce(x); }
  void ArgMax(TensorView x, TensorView out) override { real_->ArgMax(x, out); }
  void Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) override {
    real_->Sample(logits, rules, out);
  }
  void ScatterKv(TensorView k, TensorView v, const PagedKv& cache, int slot, int kv_head,
                 int row_begin) override {
    real_->ScatterKv(k, v, cache, slot, kv_head, row_begin);
  }
  void SumValues(const PagedKv& cache, int slot) override { real_->SumValues(cache, slot); }
  void AppendKv(TensorView k, TensorView v, const PagedKv& cache) override { real_->AppendKv(k, v, cache); }

 private:
  template <class Op>
  void Meter(Op op) {
    timer_->Begin();
    op();
    timer_->End();
  }

  MeteredBackend* const backend_;
  const std::unique_ptr<Ops> real_;
  std::unique_ptr<OpTimer> timer_;
};

double MeteredBackend::TakeGateSeconds() { return std::exchange(gate_seconds_, 0); }

std::unique_ptr<Ops> MeteredBackend::NewOps() { return std::make_unique<MeteredOps>(this, real_->NewOps()); }

}  // namespace sluice
