// Blockwise causal attention with online softmax (arXiv 2205.14135) for the queries of one block and one KV
// head. Key blocks start at multiples of 64 rows from row 0 and every query row is a lane or a row of its
// own, so its result does not depend on how queries were blocked.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/key_block.h"
#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {

void WindowScores(const WindowScoresBlock& block, void* scratch);  // window_scores.cc

namespace {

struct Scratch {
  float *q, *keys, *values, *out, *max, *sum;
};

size_t ScratchBytes(int rows, int head_dim) {
  return sizeof(float) * (static_cast<size_t>(rows) * (2 * head_dim + 2) + 2 * kKeyBlock * head_dim);
}

Scratch Carve(void* scratch, int rows, int head_dim) {
  Scratch s;
  s.keys = static_cast<float*>(scratch);
  s.values = s.keys + kKeyBlock * head_dim;
  s.q = s.values + kKeyBlock * head_dim;
  s.out = s.q + rows * head_dim;
  s.max = s.out + rows * head_dim;
  s.sum = s.max + rows;
  return s;
}

// Whether row m of the block sees key `key`.
SLUICE_INLINE bool Sees(const AttentionBlock& block, int m, int key) {
  const int limit = block.visible + m / block.group;
  if (key >= limit) return false;
  return block.positions == nullptr ||
         block.positions[key] > block.positions[limit - 1] - block.sliding_window;
}

void MaskScores(const AttentionBlock& block, int m0, int rows, int key0, float* scores) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < kKeyBlock; ++j)
      if (!Sees(block, m0 + r, key0 + j)) scores[r * kKeyBlock + j] = kMinusInfinity;
}

// One step of the online softmax for a row: scores become weights; returns what the old sums shrink by.
SLUICE_INLINE float SoftmaxStep(float* scores, float* max, float* sum) {
  Vec top = Load(scores);
  for (int j = kLanes; j < kKeyBlock; j += kLanes) top = Max(top, Load(scores + j));
  const float old_max = *max, new_max = __builtin_fmaxf(old_max, MaxLanes(top));
  if (new_max == kMinusInfinity) {  // nothing visible so far
    for (int j = 0; j < kKeyBlock; j += kLanes) Store(scores + j, Zero());
    return 1;
  }
  Vec shift = Set(new_max), total = Zero();
  for (int j = 0; j < kKeyBlock; j += kLanes) {
    Vec p = Exp(Load(scores + j) - shift);
    total = total + p;
    Store(scores + j, p);
  }
  const float shrink = old_max == new_max ? 1.f : ExpOf(old_max - new_max);
  *max = new_max;
  *sum = *sum * shrink + SumLanes(total);
  return shrink;
}

// Whether a sliding window hides the whole key block from every query of the block.
bool Hidden(const AttentionBlock& block, int key0, int n) {
  if (block.positions == nullptr) return false;
  int newest = block.positions[key0], oldest_query = block.positions[block.visible - 1];
  for (int j = 1; j < n; ++j) newest = MaxInt(newest, block.positions[key0 + j]);
  for (int r = 1; r < block.n_queries; ++r)
    oldest_query = MinInt(oldest_query, block.positions[block.visible - 1 + r]);
  return newest <= oldest_query - block.sliding_window;
}

void Finish(const AttentionBlock& block, const Scratch& s) {
  const int d = block.head_dim;
  for (int r = 0; r < block.n_queries; ++r) {
    for (int g = 0; g < block.group; ++g) {
      const int m = r * block.group + g;
      const Vec scale = Set(1 / s.sum[m]);
      float* out = block.out + r * block.out_row_stride + g * d;
      for (int c = 0; c < d; c += kLanes) Store(out + c, Load(s.out + m * d + c) * scale);
      if (r >= block.lse_first)
        block.lse[g * block.lse_head_stride + r - block.lse_first] = s.max[m] + __builtin_logf(s.sum[m]);
    }
  }
}

template <class Kv>
void Run(const AttentionBlock& block, const Scratch& s) {
  const int d = block.head_dim, rows = block.n_queries * block.group;
  const int end = block.visible + block.n_queries - 1;  // keys that the last query sees
  PackQueries(block.q, block.q_row_stride, block.n_queries, block.group, d, 1 / __builtin_sqrtf(d), s.q);
  for (int m = 0; m < rows; ++m) {
    s.max[m] = kMinusInfinity;
    s.sum[m] = 0;
  }
  for (int i = 0; i < rows * d; i += kLanes) Store(s.out + i, Zero());
  alignas(64) float scores[kTileRows * kKeyBlock];
  float shrink[kTileRows];
  for (int key0 = 0; key0 < end; key0 += kKeyBlock) {
    const int n = MinInt(kKeyBlock, end - key0);
    if (Hidden(block, key0, n)) continue;
    TransposeKeys(static_cast<const Kv*>(block.k) + key0 * block.k_row_stride, block.k_row_stride, n, d,
                  s.keys);
    WidenValues(static_cast<const Kv*>(block.v) + key0 * block.v_row_stride, block.v_row_stride, n, d,
                s.values);
    for (int m0 = 0; m0 < rows; m0 += kTileRows) {
      const int height = MinInt(kTileRows, rows - m0);
      const int seen = block.visible + (m0 + height - 1) / block.group - key0;  // by the tile's last row
      if (seen <= 0) continue;
      TileScores(height, s.q + m0 * d, s.keys, d, scores);
      if (block.positions != nullptr || key0 + kKeyBlock > block.visible + m0 / block.group)
        MaskScores(block, m0, height, key0, scores);
      for (int r = 0; r < height; ++r)
        shrink[r] = SoftmaxStep(scores + r * kKeyBlock, s.max + m0 + r, s.sum + m0 + r);
      const int keys = MinInt(seen, n);
      int c = 0;
      for (; c + 2 * kLanes <= d; c += 2 * kLanes)
        MulTile<2, false>(height, scores, s.values + c, d, keys, shrink, s.out + m0 * d + c, d);
      if (c < d) MulTile<1, false>(height, scores, s.values + c, d, keys, shrink, s.out + m0 * d + c, d);
    }
  }
  Finish(block, s);
}

void Attention(const AttentionBlock& block, void* scratch) {
  Scratch s = Carve(scratch, block.n_queries * block.group, block.head_dim);
  block.bf16 ? Run<uint16_t>(block, s) : Run<float>(block, s);
}

}  // namespace

const AttentionKernels kAttention = {ScratchBytes, Attention, WindowScores};

}  // namespace sluice::SLUICE_ISA
