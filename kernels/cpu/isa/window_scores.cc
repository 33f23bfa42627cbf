// Scores of prefix keys under the observation window: one pass over the keys, 64 at a time; probabilities of
// a block are summed where they are made.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/key_block.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

void WindowScores(const WindowScoresBlock& block, void* scratch);

namespace {

template <class Kv>
void Run(const WindowScoresBlock& block, float* keys, float* packed_q) {
  const int d = block.head_dim, rows = block.window * block.group;
  PackQueries(block.q, block.q_row_stride, block.window, block.group, d, 1 / __builtin_sqrtf(d), packed_q);
  alignas(64) float scores[kTileRows * kKeyBlock];
  alignas(64) float sums[kKeyBlock];
  for (int key0 = block.key_begin; key0 < block.key_end; key0 += kKeyBlock) {
    const int n = MinInt(kKeyBlock, block.key_end - key0);
    TransposeKeys(static_cast<const Kv*>(block.k) + key0 * block.k_row_stride, block.k_row_stride, n, d,
                  keys);
    for (int j = 0; j < kKeyBlock; j += kLanes) Store(sums + j, Zero());
    for (int m0 = 0; m0 < rows; m0 += kTileRows) {
      const int height = MinInt(kTileRows, rows - m0);
      TileScores(height, packed_q + m0 * d, keys, d, scores);
      for (int r = 0; r < height; ++r) {
        const int query = (m0 + r) / block.group, head = (m0 + r) % block.group;
        float* row = scores + r * kKeyBlock;
        if (block.positions != nullptr) {
          const int oldest = block.positions[block.first_query_row + query] - block.sliding_window;
          for (int j = 0; j < n; ++j)
            if (block.positions[key0 + j] <= oldest) row[j] = kMinusInfinity;
        }
        const Vec lse = Set(block.lse[head * block.lse_head_stride + query]);
        for (int j = 0; j < kKeyBlock; j += kLanes)
          Store(sums + j, Load(sums + j) + Exp(Load(row + j) - lse));
      }
    }
    for (int j = 0; j < n; j += kLanes)
      StoreFirst(block.scores + key0 + j, MinInt(kLanes, n - j), Load(sums + j));
  }
}

}  // namespace

void WindowScores(const WindowScoresBlock& block, void* scratch) {
  float* keys = static_cast<float*>(scratch);
  float* packed_q = keys + kKeyBlock * block.head_dim;
  block.bf16 ? Run<uint16_t>(block, keys, packed_q) : Run<float>(block, keys, packed_q);
}

}  // namespace sluice::SLUICE_ISA
