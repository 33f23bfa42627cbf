// Scores of keys under the observation window: one pass over the keys, 64 at a time; weights of a block are
// summed where they are made.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/key_block.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

void WindowScores(const WindowScoresBlock& block, void* scratch);

namespace {

SLUICE_INLINE float RoundedToBf16(float x) {
  union {
    float value;
    uint32_t bits;
  } u = {x};
  u.bits = (u.bits + 0x7fff + (u.bits >> 16 & 1)) & 0xffff0000u;
  return u.value;
}

template <class Kv>
void Run(const WindowScoresBlock& block, float* keys, float* packed_q) {
  const int d = block.head_dim, rows = block.window * block.group;
  const float scale = block.raw ? 1 : 1 / __builtin_sqrtf(d), unseen = block.raw ? 0 : kMinusInfinity;
  PackQueries(block.q, block.q_row_stride, block.window, block.group, d, scale, packed_q);
  alignas(64) float scores[kTileRows * kKeyBlock];
  alignas(64) float sums[kKeyBlock];
  for (int key0 = block.key_begin; key0 < block.key_end; key0 += kKeyBlock) {
    const int n = MinInt(kKeyBlock, block.key_end - key0);
    TransposeKeys(static_cast<const Kv*>(block.k) + key0 * block.k_row_stride, block.k_row_stride, n, d,
                  keys);
    for (int j = 0; j < kKeyBlock; j += kLanes) {
      const bool adds = block.accumulate && j < n;
      Store(sums + j, adds ? LoadFirst(block.scores + key0 + j, MinInt(kLanes, n - j)) : Zero());
    }
    for (int m0 = 0; m0 < rows; m0 += kTileRows) {
      const int height = MinInt(kTileRows, rows - m0);
      TileScores(height, packed_q + m0 * d, keys, d, scores);
      for (int r = 0; r < height; ++r) {
        const int query = (m0 + r) / block.group, head = (m0 + r) % block.group;
        const int own = block.first_query_row + query;
        float* row = scores + r * kKeyBlock;
        for (int j = MaxInt(0, own + 1 - key0); j < n; ++j) row[j] = unseen;
        if (block.positions != nullptr) {
          const int oldest = block.positions[own] - block.sliding_window;
          for (int j = 0; j < n; ++j)
            if (block.positions[key0 + j] <= oldest) row[j] = unseen;
        }
        if (!block.raw) {
          const Vec lse = Set(block.lse[head * block.lse_head_stride + query]);
          for (int j = 0; j < kKeyBlock; j += kLanes) Store(row + j, Exp(Load(row + j) - lse));
        }
        if (block.round_weights)
          for (int j = 0; j < kKeyBlock; ++j) row[j] = RoundedToBf16(row[j]);
        for (int j = 0; j < kKeyBlock; j += kLanes) Store(sums + j, Load(sums + j) + Load(row + j));
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
