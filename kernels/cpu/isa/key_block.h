// Role: blocks of 64 keys as f32 operands of a tile product: K transposed, V as it is; and query rows packed
// for it. Rows past the end become zeros.
#pragma once

#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

// out [head_dim][kKeyBlock].
template <class Kv>
SLUICE_INLINE void TransposeKeys(const Kv* k, int64_t row_stride, int n, int head_dim, float* out) {
  for (int j = 0; j < n; ++j)
    for (int d = 0; d < head_dim; ++d) out[d * kKeyBlock + j] = KvToFloat(k[j * row_stride + d]);
  for (int d = 0; d < head_dim && n < kKeyBlock; ++d)
    for (int j = n; j < kKeyBlock; ++j) out[d * kKeyBlock + j] = 0;
}

// out [kKeyBlock][head_dim].
template <class Kv>
SLUICE_INLINE void WidenValues(const Kv* v, int64_t row_stride, int n, int head_dim, float* out) {
  for (int j = 0; j < n; ++j)
    for (int d = 0; d < head_dim; d += kLanes) Store(out + j * head_dim + d, LoadKv(v + j * row_stride + d));
  for (int i = n * head_dim; i < kKeyBlock * head_dim; i += kLanes) Store(out + i, Zero());
}

// Rows m = query * group + head of a query block times `scale`, packed in tiles of kTileRows:
// [tile][head_dim][row of the tile].
SLUICE_INLINE void PackQueries(const float* q, int64_t q_row_stride, int n_queries, int group, int head_dim,
                               float scale, float* out) {
  const int rows = n_queries * group;
  for (int m0 = 0; m0 < rows; m0 += kTileRows) {
    const int height = MinInt(kTileRows, rows - m0);
    for (int r = 0; r < height; ++r) {
      const float* from = q + (m0 + r) / group * q_row_stride + (m0 + r) % group * head_dim;
      for (int d = 0; d < head_dim; ++d) out[d * height + r] = from[d] * scale;
    }
    out += height * head_dim;
  }
}

// scores [rows][kKeyBlock] of a packed tile of queries.
SLUICE_INLINE void TileScores(int rows, const float* packed_q, const float* keys, int head_dim,
                              float* scores) {
  for (int j = 0; j < kKeyBlock; j += 2 * kLanes)
    MulTile<2, true>(rows, packed_q, keys + j, kKeyBlock, head_dim, nullptr, scores + j, kKeyBlock);
}

}  // namespace sluice::SLUICE_ISA
