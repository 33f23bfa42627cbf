// Matmul with f32 FMA over bf16 weight panels. Every output is one accumulator lane that takes k in ascending
// order, whatever the number of rows, so a row's result never depends on its neighbours.
//
// Few rows (kDirectRows or less): weights are widened in registers, for one tile of rows at a time. More: a
// block of k of two vectors' worth of panels is widened once into L1 and used by all row tiles.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/matmul_finish.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int kPanelVecs = kPanelRows / kLanes;  // vectors of a panel: 2 or 1
constexpr int kStep = 2 / kPanelVecs;            // panels widened together: 1 or 2
constexpr int kCols = 2 * kLanes;                // outputs of a widened block
constexpr int kDirectRows = 8;
constexpr int kPrefetchBytes =
    2048;  // ahead in a panel and into the next: past a 4 KiB page the hardware stops
constexpr int kBlockRows = kTileRows * (kLanes == 8 ? 40 : 20);
constexpr int kBlockK = kLanes == 8 ? 256 : 128;  // widened block: 16 KiB

int EvenCols(int cols) { return (cols + 1) & ~1; }
bool Direct(int n) { return n <= kDirectRows; }
// Direct tiles have 4 rows, others kTileRows; the last tile of a block may have fewer.
int RowsOfTile(int n) { return Direct(n) ? MinInt(n, 4) : kTileRows; }
int BlockK(int n, int cols) { return Direct(n) ? EvenCols(cols) : kBlockK; }
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
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) {
        Vec even, odd;
        LoadBf16Pairs(w + v * 2 * kLanes, &even, &odd);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          Vec& a = acc[r][p * kPanelVecs + v];
          a = MulAdd(even, Set(xk[r]), a);
          a = MulAdd(odd, Set(xk[kRows + r]), a);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPanels * kPanelVecs; ++i)
      Store(sums + r * kPanels * kPanelRows + i * kLanes, acc[r][i]);
}

template <int kRows, int kPanels>
void DirectPanels(const MatMulBlock& block, const float* x, int row, int panel) {
  const int k_pairs = EvenCols(block.cols) / 2;
  const int64_t panel_stride = static_cast<int64_t>(k_pairs) * 2 * kPanelRows;
  alignas(64) float sums[kRows * kPanels * kPanelRows];
  DirectTile<kRows, kPanels>(x, block.panels + panel * panel_stride, panel_stride, k_pairs, sums);
  const int col = panel * kPanelRows;
  FinishTile(block, sums, kPanels * kPanelRows, row, kRows, col,
             MinInt(kPanels * kPanelRows, block.rows - col));
}

// Row tiles inside, so that a panel is read from memory once.
template <int kPanels>
void DirectRows(const MatMulBlock& block, const float* packed, int panel) {
  for (int row = 0; row < block.n; row += 4) {
    const float* x = packed + static_cast<int64_t>(row) * EvenCols(block.cols);
    switch (MinInt(4, block.n - row)) {
      case 1:
        DirectPanels<1, kPanels>(block, x, row, panel);
        break;
      case 2:
        DirectPanels<2, kPanels>(block, x, row, panel);
        break;
      case 3:
        DirectPanels<3, kPanels>(block, x, row, panel);
        break;
      default:
        DirectPanels<4, kPanels>(block, x, row, panel);
        break;
    }
  }
}

void DirectMatMul(const MatMulBlock& block, const float* packed, int panel, int panel_end) {
  // Enough accumulators to hide the latency of an FMA, few enough to stay in registers.
  if (block.n == 1) {
    for (; panel + 8 / kPanelVecs <= panel_end; panel += 8 / kPanelVecs)
      DirectRows<8 / kPanelVecs>(block, packed, panel);
  } else {
    for (; panel + 2 / kPanelVecs <= panel_end; panel += 2 / kPanelVecs)
      DirectRows<2 / kPanelVecs>(block, packed, panel);
  }
  for (; panel < panel_end; ++panel) DirectRows<1>(block, packed, panel);
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
  if (Direct(block.n)) return DirectMatMul(block, x, panel, panel_end);
  const int even = EvenCols(block.cols);
  const int64_t panel_stride = static_cast<int64_t>(even) * kPanelRows;
  float* wide = static_cast<float*>(scratch);
  float* sums = wide + kBlockK * kCols;  // [n, kCols]
  for (; panel < panel_end; panel += kStep) {
    for (int k0 = 0; k0 < even; k0 += kBlockK) {
      const int k1 = MinInt(k0 + kBlockK, even);
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
