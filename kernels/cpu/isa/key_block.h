// Role: blocks of 64 keys as f32 operands of a tile product: K transposed, V as it is; and query rows packed
// for it. Rows past the end become zeros.
#pragma once

#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

SLUICE_INLINE __m256 Load8(const float* p) { return _mm256_loadu_ps(p); }
SLUICE_INLINE __m256 Load8(const uint16_t* p) {
  __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

// An 8 x 8 square of rows that lie row_stride apart, transposed; row i to out + i * out_stride.
template <class Kv>
SLUICE_INLINE void Transpose8x8(const Kv* rows, int64_t row_stride, float* out, int out_stride) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    const __m256 a = Load8(rows + i * row_stride), b = Load8(rows + (i + 1) * row_stride);
    pairs[i] = _mm256_unpacklo_ps(a, b);
    pairs[i + 1] = _mm256_unpackhi_ps(a, b);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31));
  }
}

// out [head_dim][kKeyBlock].
template <class Kv>
SLUICE_INLINE void TransposeKeys(const Kv* k, int64_t row_stride, int n, int head_dim, float* out) {
  int j = 0;
  for (; j + 8 <= n; j += 8)
    for (int d = 0; d < head_dim; d += 8)
      Transpose8x8(k + j * row_stride + d, row_stride, out + d * kKeyBlock + j, kKeyBlock);
  for (; j < kKeyBlock; ++j)
    for (int d = 0; d < head_dim; ++d) out[d * kKeyBlock + j] = j < n ? KvToFloat(k[j * row_stride + d]) : 0;
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
