// Matmul with f32 FMA over bf16 weight panels. Every output is one accumulator lane that takes k in ascending
// order, whatever the number of rows, so a row's result never depends on its neighbours.
//
// Few rows (kDirectRows or less): weights are widened in registers. More: a block of k of two vectors' worth
// of panels is widened once into L1 and used by all row tiles.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/matmul_finish.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int kPanelVecs = kPanelRows / kLanes;  // vectors of a panel: 2 or 1
constexpr int kStep = 2 / kPanelVecs;            // panels widened together: 1 or 2
constexpr int kCols = 2 * kLanes;                // outputs of a widened block
constexpr int kDirectRows = 4;
// Ahead in a panel and into the next: hardware prefetching stops at the end of a 4 KiB page.
constexpr int kPrefetchBytes = 2048;
constexpr int kBlockRows = kTileRows * (kLanes == 8 ? 40 : 20);
constexpr int kBlockK = kLanes == 8 ? 320 : 160;  // a widened block takes 20 KiB of L1 beside a tile of x

int EvenCols(int cols) { return (cols + 1) & ~1; }
bool Direct(int n) { return n <= kDirectRows; }
int RowsOfTile(int n) { return Direct(n) ? n : kTileRows; }  // the last tile of a block may have fewer
// Blocks of k of about equal length, so that none is too short to pay for its tile.
int BlockK(int n, int cols) {
  const int even = EvenCols(cols), blocks = Direct(n) ? 1 : (even + kBlockK - 1) / kBlockK;
  return EvenCols((even + blocks - 1) / blocks);
}
int KBlocks(int n, int cols) { return (EvenCols(cols) + BlockK(n, cols) - 1) / BlockK(n, cols); }

// Packed x: [k block][row tile][k][row of the tile], with an odd last column followed by zeros.
void Pack(const MatMulBlock& block, int k_block, void* packed) {
  const int block_k = BlockK(block.n, block.cols), k0 = k_block * block_k, rows = RowsOfTile(block.n);
  const int k1 = MinInt(k0 + block_k, EvenCols(block.cols)), end = MinInt(k1, block.cols);
  float* out = static_cast<float*>(packed) + static_cast<int64_t>(k0) * block.n;
  for (int row = 0; row < block.n; row += rows) {
    const int height = MinInt(rows, block.n - row);
    for (int r = 0; r < height; ++r) {
      const float* x = block.x + (row + r) * block.x_stride;
      for (int k = k0; k < end; ++k) out[(k - k0) * height + r] = x[k];
      if (end < k1) out[(end - k0) * height + r] = 0;
    }
    out += static_cast<int64_t>(k1 - k0) * height;
  }
}

size_t PackedBytes(int n, int cols) { return static_cast<size_t>(n) * EvenCols(cols) * sizeof(float); }

// Sums of kRows rows over kPanels panels that lie panel_stride apart.
template <int kRows, int kPanels>
SLUICE_INLINE void DirectTile(const float* x, const uint16_t* panels, int64_t panel_stride, int k_pairs,
                              float* sums) {
  Vec acc[kRows][kPanels * kPanelVecs];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPanels * kPanelVecs; ++i) acc[r][i] = Zero();
  for (int k = 0; k < k_pairs; ++k) {
    const float* xk = x + 2 * k * kRows;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const uint16_t* w = panels + p * panel_stride + static_cast<int64_t>(k) * 2 * kPanelRows;
      _mm_prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes, _MM_HINT_T0);
      Vec even[kPanelVecs], odd[kPanelVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) LoadBf16Pairs(w + v * 2 * kLanes, &even[v], &odd[v]);
        // One broadcast at a time: all registers but few are accumulators.
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec x0 = Set(xk[r]);
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVecs; ++v)
          acc[r][p * kPanelVecs + v] = MulAdd(even[v], x0, acc[r][p * kPanelVecs + v]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec x1 = Set(xk[kRows + r]);
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVecs; ++v)
          acc[r][p * kPanelVecs + v] = MulAdd(odd[v], x1, acc[r][p * kPanelVecs + v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPanels * kPanelVecs; ++i)
      Store(sums + r * kPanels * kPanelRows + i * kLanes, acc[r][i]);
}

template <int kRows, int kPanels>
void DirectPanels(const MatMulBlock& block, const float* packed, int panel) {
  const int k_pairs = EvenCols(block.cols) / 2;
  const int64_t panel_stride = static_cast<int64_t>(k_pairs) * 2 * kPanelRows;
  alignas(64) float sums[kRows * kPanels * kPanelRows];
  DirectTile<kRows, kPanels>(packed, block.panels + panel * panel_stride, panel_stride, k_pairs, sums);
  const int col = panel * kPanelRows;
  FinishTile(block, sums, kPanels * kPanelRows, 0, kRows, col,
             MinInt(kPanels * kPanelRows, block.rows - col));
}

template <int kRows>
void DirectMatMul(const MatMulBlock& block, const float* packed, int panel, int panel_end) {
  // Enough accumulators to hide the latency of an FMA, few enough to stay in registers.
  constexpr int kVecs = kRows == 1 ? 8 : kRows == 2 ? 4 : 2, kPanels = kVecs / kPanelVecs;
  for (; panel + kPanels <= panel_end; panel += kPanels) DirectPanels<kRows, kPanels>(block, packed, panel);
  for (; panel < panel_end; ++panel) DirectPanels<kRows, 1>(block, packed, panel);
}

// n_panels panels, k pairs [pair, pair_end), to [k][kCols] f32. Missing panels become zeros.
void Widen(const uint16_t* panels, int64_t panel_stride, int n_panels, int pair, int pair_end, float* out) {
  for (int p = 0; p < kStep; ++p) {
    for (int v = 0; v < kPanelVecs; ++v) {
      float* to = out + (p * kPanelVecs + v) * kLanes;
      const uint16_t* from = panels + p * panel_stride + v * 2 * kLanes;
      for (int k = pair; k < pair_end; ++k, to += 2 * kCols) {
        Vec even = Zero(), odd = Zero();
        if (p < n_panels) LoadBf16Pairs(from + static_cast<int64_t>(k) * 2 * kPanelRows, &even, &odd);
        Store(to, even);
        Store(to + kCols, odd);
      }
    }
  }
}

size_t ScratchBytes(int n, int cols) {
  return Direct(n) ? 0 : sizeof(float) * (kBlockK * kCols + static_cast<size_t>(n) * kCols);
}

void MatMul(const MatMulBlock& block, const void* packed, int panel, int panel_end, void* scratch) {
  const float* x = static_cast<const float*>(packed);
  switch (block.n) {
    case 1:
      return DirectMatMul<1>(block, x, panel, panel_end);
    case 2:
      return DirectMatMul<2>(block, x, panel, panel_end);
    case 3:
      return DirectMatMul<3>(block, x, panel, panel_end);
    case kDirectRows:
      return DirectMatMul<kDirectRows>(block, x, panel, panel_end);
  }
  const int even = EvenCols(block.cols), block_k = BlockK(block.n, block.cols);
  const int64_t panel_stride = static_cast<int64_t>(even) * kPanelRows;
  float* wide = static_cast<float*>(scratch);
  float* sums = wide + kBlockK * kCols;  // [n, kCols]
  for (; panel < panel_end; panel += kStep) {
    for (int k0 = 0; k0 < even; k0 += block_k) {
      const int k1 = MinInt(k0 + block_k, even);
      Widen(block.panels + panel * panel_stride, panel_stride, MinInt(kStep, panel_end - panel), k0 / 2,
            k1 / 2, wide);
      const float* tile = x + static_cast<int64_t>(block.n) * k0;
      for (int row = 0; row < block.n; row += kTileRows) {
        const int height = MinInt(kTileRows, block.n - row);
        MulTile<2, true>(height, tile, wide, kCols, k1 - k0, k0 == 0 ? nullptr : kOnes, sums + row * kCols,
                         kCols);
        tile += static_cast<int64_t>(height) * (k1 - k0);
      }
    }
    const int col = panel * kPanelRows;
    FinishTile(block, sums, kCols, 0, block.n, col,
               MinInt(MinInt(kStep, panel_end - panel) * kPanelRows, block.rows - col));
  }
}

}  // namespace

const MatMulKernels kMatMul = {kBlockRows, PackedBytes, ScratchBytes, kLanes == 8 ? 4 : 8,
                               KBlocks,    Pack,        MatMul};

}  // namespace sluice::SLUICE_ISA
