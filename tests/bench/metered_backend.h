// Role: a backend whose queues tell how long the gates' ops took (scores, pooling, the choice, compaction and
// the gather of what goes on), and that can leave decode attention out. Why: both are asked of whole passes
// and steps, where ops overlap with what surrounds them as in a server. Threads: one.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace sluice {

class MeteredBackend final : public Backend {
 public:
  explicit MeteredBackend(Backend* real) : real_(real) {}

  // Seconds of gate ops that were synced since the last call: on a GPU between events around each op, else
  // wall time.
  double TakeGateSeconds();
  // Decode attention is not queued: its output is whatever its memory held, and so are logits and tokens.
  void LeaveOutAttention(bool yes) { without_attention_ = yes; }

  std::string description() const override { return real_->description(); }
  DeviceMemory memory() const override { return real_->memory(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return real_->Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateExposed(size_t bytes) override { return real_->AllocateExposed(bytes); }
  bool is_gpu() const override { return real_->is_gpu(); }
  void Enter() override { real_->Enter(); }
  absl::Status Drain() override { return real_->Drain(); }
  absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) override { return real_->MapHost(data, bytes); }
  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                     const ReadRows& read) override {
    return real_->PackMatrix(rows, cols, read);
  }
  std::unique_ptr<Ops> NewOps() override;
  DType product_input() const override { return real_->product_input(); }
  int64_t rows_at_once() const override { return real_->rows_at_once(); }
  absl::Duration waiting() const override { return real_->waiting(); }

 private:
  class MeteredOps;
  Backend* const real_;
  double gate_seconds_ = 0;
  bool without_attention_ = false;
};

}  // namespace sluice
