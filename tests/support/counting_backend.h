// Role: a backend that counts what is allocated and can run dry. Threads: one.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "kernels/backend.h"

namespace sluice {

class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(Backend* real) : real_(real) {}
  std::string description() const override { return real_->description(); }
  DeviceMemory memory() const override { return real_->memory(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (allowed_ == 0) return absl::ResourceExhaustedError("no memory left");
    --allowed_;
    SLUICE_ASSIGN_OR_RETURN(Buffer buffer, real_->Allocate(bytes));
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    // The real buffer is given back when the counted one is.
    auto held = std::make_shared<Buffer>(std::move(buffer));
    return Buffer(held->data(), bytes, [this, held, bytes](void*) mutable {
      live_ -= bytes;
      held.reset();
    });
  }
  absl::StatusOr<Buffer> AllocateExposed(size_t bytes) override { return Allocate(bytes); }
  bool is_gpu() const override { return real_->is_gpu(); }
  void Enter() override { real_->Enter(); }
  absl::Status Drain() override { return real_->Drain(); }
  absl::StatusOr<Buffer> MapHost(void* data, size_t bytes) override { return real_->MapHost(data, bytes); }
  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(int64_t rows, int64_t cols,
                                                     const ReadRows& read) override {
    return real_->PackMatrix(rows, cols, read);
  }
  std::unique_ptr<Ops> NewOps() override { return real_->NewOps(); }
  DType product_input() const override { return real_->product_input(); }
  int64_t rows_at_once() const override { return real_->rows_at_once(); }
  absl::Duration waiting() const override { return std::max(waiting_, real_->waiting()); }

  size_t live() const { return live_; }
  size_t peak() const { return peak_; }
  void ResetPeak() { peak_ = live_; }
  // How many more allocations succeed.
  static constexpr int64_t kUnlimited = int64_t{1} << 60;
  void Allow(int64_t allocations) { allowed_ = allocations; }
  // As if somebody had waited for the device so long.
  void Hang(absl::Duration waiting) { waiting_ = waiting; }

 private:
  Backend* const real_;
  size_t live_ = 0, peak_ = 0;
  int64_t allowed_ = kUnlimited;
  absl::Duration waiting_;
};

}  // namespace sluice
