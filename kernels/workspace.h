// Role: scratch memory of one loop: tensors taken during a layer and given back together.
// Threads: one loop.
#pragma once

#include <initializer_list>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/backend.h"

namespace sluice {

class Workspace {
 public:
  explicit Workspace(Backend* backend) : backend_(backend) {}

  // Valid until Reset(). Contents undefined. ResourceExhausted when the device has no memory left.
  absl::StatusOr<TensorView> Take(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::Contiguous(nullptr, dtype, shape);
    size_t bytes = DTypeSize(dtype);
    for (int64_t n : shape) bytes *= static_cast<size_t>(n);
    bytes = (bytes + 63) / 64 * 64;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) {
      SLUICE_ASSIGN_OR_RETURN(Buffer block, backend_->Allocate(bytes > kMinBlock ? bytes : kMinBlock));
      blocks_.push_back(std::move(block));
    }
    view.data = static_cast<char*>(blocks_[block_].data()) + used_;
    used_ += bytes;
    return view;
  }

  // Every tensor taken so far may be overwritten. Memory is kept for the next round; Shrink() gives it back.
  void Reset() { block_ = used_ = 0; }
  void Shrink() {
    blocks_.clear();
    Reset();
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const Buffer& b : blocks_) sum += b.bytes();
    return sum;
  }

 private:
  static constexpr size_t kMinBlock = size_t{4} << 20;
  Backend* backend_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;
  size_t used_ = 0;
};

}  // namespace sluice
