// Role: a weight matrix on a GPU: bf16 rows of `stride` columns, zeros past cols(). The stride is a multiple
// of 64, so that rows start at 128 bytes and a dot product needs no tail. Immutable once built.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/backend.h"

namespace sluice {

class RowMatrix final : public Matrix {
 public:
  static int64_t StrideOf(int64_t cols) { return (cols + 63) / 64 * 64; }

  RowMatrix(int64_t rows, int64_t cols, Buffer memory) : Matrix(rows, cols), memory_(std::move(memory)) {}
  int64_t stride() const { return StrideOf(cols()); }
  void* data() const { return memory_.data(); }

 private:
  Buffer memory_;
};

}  // namespace sluice
