// Role: the register tile under every product of f32 blocks: C [rows, kVecs vectors] = C * scale + A B.
// Every output is one lane that takes k in ascending order.
#pragma once

#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

constexpr int kTileRows = kLanes == 8 ? 6 : 12;  // with two vectors a row, fills the register file
constexpr int kKeyBlock = 64;                    // keys that attention takes at a time

alignas(64) inline constexpr float kOnes[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// A is [k][kRows] when kPacked, else [kRows][kKeyBlock]. B row k at b + k * ldb. scale [kRows]; null: C = A
// B.
template <int kRows, int kVecs, bool kPacked>
SLUICE_INLINE void MulFixedTile(const float* a, const float* b, int ldb, int k_end, const float* scale,
                                float* c, int ldc) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = scale == nullptr ? Zero() : Load(c + r * ldc + v * kLanes) * Set(scale[r]);
  for (int k = 0; k < k_end; ++k) {
    Vec bk[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) bk[v] = Load(b + v * kLanes);
    b += ldb;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      Vec x = Set(kPacked ? a[r] : a[r * kKeyBlock]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) acc[r][v] = MulAdd(x, bk[v], acc[r][v]);
    }
    a += kPacked ? kRows : 1;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) Store(c + r * ldc + v * kLanes, acc[r][v]);
}

template <int kVecs, bool kPacked, int kRows = kTileRows>
void MulTile(int rows, const float* a, const float* b, int ldb, int k_end, const float* scale, float* c,
             int ldc) {
  if (rows == kRows) {
    MulFixedTile<kRows, kVecs, kPacked>(a, b, ldb, k_end, scale, c, ldc);
  } else if constexpr (kRows > 1) {
    MulTile<kVecs, kPacked, kRows - 1>(rows, a, b, ldb, k_end, scale, c, ldc);
  }
}

}  // namespace sluice::SLUICE_ISA
