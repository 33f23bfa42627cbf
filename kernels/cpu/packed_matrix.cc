#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/isa/kernels.h"

namespace sluice {

size_t PackedMatrix::packed_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows) * ((cols + 1) / 2) * 2 * kPanelRows *
         sizeof(uint16_t);
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackedMatrix::Build(int64_t rows, int64_t cols, Buffer memory,
                                                                  const Backend::ReadRows& read) {
  auto* panels = static_cast<uint16_t*>(memory.data());
  auto matrix = std::unique_ptr<PackedMatrix>(new PackedMatrix(rows, cols, std::move(memory)));
  const int64_t pairs = matrix->pairs();
  constexpr int64_t kReadRows = 4 * kPanelRows;
  std::vector<float> staged(kReadRows * cols);
  for (int64_t begin = 0; begin < rows; begin += kReadRows) {
    const int64_t end = std::min(begin + kReadRows, rows);
    SLUICE_RETURN_IF_ERROR(read(begin, end, staged.data()));
    for (int64_t row0 = begin; row0 < end; row0 += kPanelRows) {
      uint16_t* out = panels + row0 / kPanelRows * pairs * 2 * kPanelRows;
      if (end - row0 < kPanelRows || cols % 2 != 0) std::memset(out, 0, pairs * 2 * kPanelRows * 2);
      for (int64_t row = row0; row < std::min(row0 + kPanelRows, end); ++row) {
        const float* x = staged.data() + (row - begin) * cols;
        uint16_t* to = out + (row - row0) * 2;
        for (int64_t c = 0; c < cols; ++c) to[c / 2 * 2 * kPanelRows + c % 2] = RoundToBf16(x[c]);
      }
    }
  }
  return matrix;
}

void PackedMatrix::UnpackRow(int64_t row, float* out) const {
  const uint16_t* from = panels() + row / kPanelRows * pairs() * 2 * kPanelRows + row % kPanelRows * 2;
  for (int64_t c = 0; c < cols(); ++c) out[c] = Bf16ToFloat(from[c / 2 * 2 * kPanelRows + c % 2]);
}

}  // namespace sluice
