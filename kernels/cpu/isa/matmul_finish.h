// Role: how a finished tile of sums leaves a matmul kernel: out = sum + bias, + out when accumulating. One
// place, so that every path of a matmul rounds alike.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

// sums [n, row stride sum_stride] of outputs [col, col + n_cols) and rows [row, row + n) of the block.
SLUICE_INLINE void FinishTile(const MatMulBlock& block, const float* sums, int sum_stride, int row, int n,
                              int col, int n_cols) {
  for (int r = 0; r < n; ++r) {
    float* out = block.out + (row + r) * block.out_stride + col;
    const float* sum = sums + r * sum_stride;
    for (int c = 0; c < n_cols; c += kLanes) {
      int left = MinInt(kLanes, n_cols - c);
      Vec x = Load(sum + c);
      if (block.bias != nullptr) x = x + LoadFirst(block.bias + col + c, left);
      if (block.accumulate) x = x + LoadFirst(out + c, left);
      StoreFirst(out + c, left, x);
    }
  }
}

}  // namespace sluice::SLUICE_ISA
