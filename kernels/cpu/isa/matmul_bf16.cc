// Matmul with vdpbf16ps: activations are rounded to bf16, products of k pairs are added to f32 lanes. Panels
// are used as they are. Every output is one lane that takes k pairs in ascending order, for any number of
// rows.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/matmul_finish.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int kRowsOfTile = 12;
constexpr int kBlockRows = 20 * kRowsOfTile;
constexpr int kBlockPairs = 128;  // of two panels: 16 KiB
constexpr int kPairBf16 = 2 * kPanelRows;

int Pairs(int cols) { return (cols + 1) / 2; }

uint32_t RoundToBf16(float x) {
  union {
    float value;
    uint32_t bits;
  } u = {x};
  if ((u.bits & 0x7fffffff) > 0x7f800000) return (u.bits >> 16) | 0x40;  // NaN stays one
  return (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
}

int KBlocks(int n, int cols) { return (Pairs(cols) + kBlockPairs - 1) / kBlockPairs; }

// Packed x: [block of k pairs][row tile][pair][row of the tile], one u32 a pair.
void Pack(const MatMulBlock& block, int k_block, void* packed) {
  const int k0 = k_block * kBlockPairs, k1 = MinInt(k0 + kBlockPairs, Pairs(block.cols));
  uint32_t* out = static_cast<uint32_t*>(packed) + static_cast<int64_t>(k0) * block.n;
  for (int row = 0; row < block.n; row += kRowsOfTile) {
    const int height = MinInt(kRowsOfTile, block.n - row);
    for (int r = 0; r < height; ++r) {
      const float* x = block.x + (row + r) * block.x_stride;
      for (int k = k0; k < k1; ++k) {
        uint32_t low = RoundToBf16(x[2 * k]);
        uint32_t high = 2 * k + 1 < block.cols ? RoundToBf16(x[2 * k + 1]) : 0;
        out[(k - k0) * height + r] = low | high << 16;
      }
    }
    out += static_cast<int64_t>(k1 - k0) * height;
  }
}

size_t PackedBytes(int n, int cols) { return static_cast<size_t>(n) * Pairs(cols) * sizeof(uint32_t); }

// sums [kRows, kPanels * 16] (+)= x * panels.
template <int kRows, int kPanels>
SLUICE_INLINE void FixedTile(const uint32_t* x, const uint16_t* w, int64_t panel_stride, int pairs,
                             bool first, float* sums, int sum_stride) {
  __m512 acc[kRows][kPanels];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p)
      acc[r][p] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * sum_stride + p * kPanelRows);
  for (int k = 0; k < pairs; ++k) {
    __m512bh wk[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const uint16_t* from = w + p * panel_stride + static_cast<int64_t>(k) * kPairBf16;
      _mm_prefetch(reinterpret_cast<const char*>(from) + 2048, _MM_HINT_T0);
      wk[p] = (__m512bh)_mm512_loadu_si512(from);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      __m512bh xk = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r]));
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], wk[p], xk);
    }
    x += kRows;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(sums + r * sum_stride + p * kPanelRows, acc[r][p]);
}

template <int kPanels, int kRows = kRowsOfTile>
void Tile(int rows, const uint32_t* x, const uint16_t* w, int64_t panel_stride, int pairs, bool first,
          float* sums, int sum_stride) {
  if (rows == kRows) {
    FixedTile<kRows, kPanels>(x, w, panel_stride, pairs, first, sums, sum_stride);
  } else if constexpr (kRows > 1) {
    Tile<kPanels, kRows - 1>(rows, x, w, panel_stride, pairs, first, sums, sum_stride);
  }
}

template <int kPanels, int kMaxRows>
void Panels(const MatMulBlock& block, const uint32_t* packed, int panel, float* sums) {
  const int pairs = Pairs(block.cols);
  const int64_t panel_stride = static_cast<int64_t>(pairs) * kPairBf16;
  const uint16_t* w = block.panels + panel * panel_stride;
  for (int k0 = 0; k0 < pairs; k0 += kBlockPairs) {
    const int n_pairs = MinInt(kBlockPairs, pairs - k0);
    const uint32_t* x = packed + static_cast<int64_t>(block.n) * k0;
    for (int row = 0; row < block.n; row += kRowsOfTile) {
      const int height = MinInt(kRowsOfTile, block.n - row);
      Tile<kPanels, kMaxRows>(height, x, w + static_cast<int64_t>(k0) * kPairBf16, panel_stride, n_pairs,
                              k0 == 0, sums + row * kPanels * kPanelRows, kPanels * kPanelRows);
      x += static_cast<int64_t>(height) * n_pairs;
    }
  }
  const int col = panel * kPanelRows;
  FinishTile(block, sums, kPanels * kPanelRows, 0, block.n, col,
             MinInt(kPanels * kPanelRows, block.rows - col));
}

size_t ScratchBytes(int n, int cols) {
  return static_cast<size_t>(n < 3 ? 3 : n) * 8 * kPanelRows * sizeof(float);
}

void MatMul(const MatMulBlock& block, const void* packed, int panel, int panel_end, void* scratch) {
  const uint32_t* x = static_cast<const uint32_t*>(packed);
  float* sums = static_cast<float*>(scratch);
  if (block.n <= 3)  // more panels at once, to hide the latency of vdpbf16ps
    for (; panel + 8 <= panel_end; panel += 8) Panels<8, 3>(block, x, panel, sums);
  for (; panel + 2 <= panel_end; panel += 2) Panels<2, kRowsOfTile>(block, x, panel, sums);
  for (; panel < panel_end; ++panel) Panels<1, kRowsOfTile>(block, x, panel, sums);
}

}  // namespace

const MatMulKernels kMatMul = {kBlockRows, PackedBytes, ScratchBytes, 8, KBlocks, Pack, MatMul};

}  // namespace sluice::SLUICE_ISA
