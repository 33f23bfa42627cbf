// Role: a weight matrix as bf16 panels of 16 rows, pairs of columns interleaved: panel p, column pair j, row
// r of the panel at panels[((p * pairs + j) * 16 + r) * 2]. One layout for decode and prefill, read front to
// back. Rows of the last panel and an odd last column are padded with zeros. Immutable once built.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sluice {

class PackedMatrix final : public Matrix {
 public:
  // Reads the matrix through `read`, a few panels at a time, into `memory` of packed_bytes().
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Build(int64_t rows, int64_t cols, Buffer memory,
                                                             const Backend::ReadRows& read);
  static size_t packed_bytes(int64_t rows, int64_t cols);

  const uint16_t* panels() const { return static_cast<const uint16_t*>(memory_.data()); }
  int n_panels() const { return static_cast<int>((rows() + 15) / 16); }

  void UnpackRow(int64_t row, float* out) const;  // out [cols]

 private:
  PackedMatrix(int64_t rows, int64_t cols, Buffer memory) : Matrix(rows, cols), memory_(std::move(memory)) {}
  int64_t pairs() const { return (cols() + 1) / 2; }
  Buffer memory_;
};

}  // namespace sluice
