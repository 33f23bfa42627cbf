// Decode attention over rows given by pointers, and the scores by which sparse attentions choose them. All
// query heads of a KV head are done together, so that K, V and bounds are read once.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {
namespace {

// scores[j] = q . k_j for kKeys keys.
template <int kKeys, class Kv>
SLUICE_INLINE void Dots(const float* q, const void* const* k_rows, int head_dim, float* scores) {
  Vec acc[kKeys];
  for (int j = 0; j < kKeys; ++j) acc[j] = Zero();
  for (int d = 0; d < head_dim; d += kLanes) {
    const Vec qd = Load(q + d);
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j)
      acc[j] = MulAdd(qd, LoadKv(static_cast<const Kv*>(k_rows[j]) + d), acc[j]);
  }
  for (int j = 0; j < kKeys; ++j) scores[j] = SumLanes(acc[j]);
}

// One head's weights applied to n value rows, kVecs vectors of the row at a time.
template <int kVecs, class Kv>
SLUICE_INLINE void AddValues(const float* weights, const void* const* v_rows, int n, int column, float shrink,
                             float* out) {
  Vec acc[kVecs];
  for (int i = 0; i < kVecs; ++i) acc[i] = Load(out + column + i * kLanes) * Set(shrink);
  for (int j = 0; j < n; ++j) {
    const Kv* v = static_cast<const Kv*>(v_rows[j]) + column;
    const Vec w = Set(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) acc[i] = MulAdd(w, LoadKv(v + i * kLanes), acc[i]);
  }
  for (int i = 0; i < kVecs; ++i) Store(out + column + i * kLanes, acc[i]);
}

template <class Kv>
void AttendHead(const float* q, int head_dim, const void* const* k_rows, const void* const* v_rows, int n,
                float* max, float* sum, float* out) {
  alignas(64) float scores[kRowBlock];
  int j = 0;
  for (; j + 4 <= n; j += 4) Dots<4, Kv>(q, k_rows + j, head_dim, scores + j);
  for (; j < n; ++j) Dots<1, Kv>(q, k_rows + j, head_dim, scores + j);
  for (; j % kLanes != 0; ++j) scores[j] = kMinusInfinity;
  Vec top = Load(scores);
  for (int i = kLanes; i < j; i += kLanes) top = Max(top, Load(scores + i));
  const float old_max = *max, new_max = __builtin_fmaxf(old_max, MaxLanes(top));
  Vec total = Zero();
  for (int i = 0; i < j; i += kLanes) {
    Vec p = Exp(Load(scores + i) - Set(new_max));
    total = total + p;
    Store(scores + i, p);
  }
  const float shrink = old_max == new_max ? 1.f : ExpOf(old_max - new_max);
  *max = new_max;
  *sum = *sum * shrink + SumLanes(total);
  int c = 0;
  for (; c + 8 * kLanes <= head_dim; c += 8 * kLanes) AddValues<8, Kv>(scores, v_rows, n, c, shrink, out);
  for (; c + 4 * kLanes <= head_dim; c += 4 * kLanes) AddValues<4, Kv>(scores, v_rows, n, c, shrink, out);
  for (; c < head_dim; c += kLanes) AddValues<1, Kv>(scores, v_rows, n, c, shrink, out);
}

void AttendRows(const float* q, int group, int head_dim, bool bf16, const void* const* k_rows,
                const void* const* v_rows, int n, const DecodePartial& partial) {
  for (int g = 0; g < group; ++g) {
    float* out = partial.o + g * head_dim;
    if (bf16) {
      AttendHead<uint16_t>(q + g * head_dim, head_dim, k_rows, v_rows, n, partial.m + g, partial.l + g, out);
    } else {
      AttendHead<float>(q + g * head_dim, head_dim, k_rows, v_rows, n, partial.m + g, partial.l + g, out);
    }
  }
}

template <class Kv>
void ScoreRowsOf(const float* q, int group, int head_dim, const void* const* k_rows, int n, float* scores,
                 int64_t score_stride) {
  for (int g = 0; g < group; ++g) {
    const float* of_head = q + g * head_dim;
    float* out = scores + g * score_stride;
    int j = 0;
    for (; j + 4 <= n; j += 4) Dots<4, Kv>(of_head, k_rows + j, head_dim, out + j);
    for (; j < n; ++j) Dots<1, Kv>(of_head, k_rows + j, head_dim, out + j);
  }
}

void RowScores(const float* q, int group, int head_dim, bool bf16, const void* const* k_rows, int n,
               float* scores, int64_t score_stride) {
  bf16 ? ScoreRowsOf<uint16_t>(q, group, head_dim, k_rows, n, scores, score_stride)
       : ScoreRowsOf<float>(q, group, head_dim, k_rows, n, scores, score_stride);
}

template <int kHeads, class Kv>
SLUICE_INLINE void ScoreHeads(const float* w, int64_t w_stride, int n_channels, const void* const* lines,
                              float* scores, int64_t score_stride) {
  for (int i = 0; i < 64; i += 2 * kLanes) {
    Vec acc[kHeads][2];
    for (int g = 0; g < kHeads; ++g) acc[g][0] = acc[g][1] = Zero();
    for (int c = 0; c < n_channels; ++c) {
      const Kv* line = static_cast<const Kv*>(lines[c]) + i;
      const Vec x0 = LoadKv(line), x1 = LoadKv(line + kLanes);
#pragma GCC unroll 4
      for (int g = 0; g < kHeads; ++g) {
        const Vec wg = Set(w[g * w_stride + c]);
        acc[g][0] = MulAdd(wg, x0, acc[g][0]);
        acc[g][1] = MulAdd(wg, x1, acc[g][1]);
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      Store(scores + g * score_stride + i, acc[g][0]);
      Store(scores + g * score_stride + i + kLanes, acc[g][1]);
    }
  }
}

template <class Kv>
void ScoreGroup(const float* w, int64_t w_stride, int group, int n_channels, const void* const* lines,
                float* scores, int64_t score_stride) {
  for (int g = 0; g < group;) {
    const float* wg = w + g * w_stride;
    float* out = scores + g * score_stride;
    if (group - g >= 4) {
      ScoreHeads<4, Kv>(wg, w_stride, n_channels, lines, out, score_stride);
      g += 4;
    } else if (group - g >= 2) {
      ScoreHeads<2, Kv>(wg, w_stride, n_channels, lines, out, score_stride);
      g += 2;
    } else {
      ScoreHeads<1, Kv>(wg, w_stride, n_channels, lines, out, score_stride);
      g += 1;
    }
  }
}

void PageScores(const float* w, int64_t w_stride, int group, int n_channels, bool bf16,
                const void* const* lines, float* scores, int64_t score_stride) {
  bf16 ? ScoreGroup<uint16_t>(w, w_stride, group, n_channels, lines, scores, score_stride)
       : ScoreGroup<float>(w, w_stride, group, n_channels, lines, scores, score_stride);
}

void PageWeights(float* scores, int64_t score_stride, int group, int n_pages, int page, int last_page,
                 const float* inverse_tau, float* weights) {
  for (int g = 0; g < group; ++g) {
    float* s = scores + g * score_stride;
    float top = s[0];
    for (int j = 1; j < n_pages; ++j) top = __builtin_fmaxf(top, s[j]);
    const Vec tau = Set(inverse_tau[g]), shift = Set(top);
    float total = 0;
    int j = 0;
    Vec sum = Zero();
    for (; j + kLanes <= n_pages; j += kLanes) {
      Vec p = Exp((Load(s + j) - shift) * tau);
      sum = sum + p;
      Store(s + j, p);
    }
    if (j < n_pages) {
      StoreFirst(s + j, n_pages - j, Exp((LoadFirst(s + j, n_pages - j) - shift) * tau));
      for (; j < n_pages; ++j) total += s[j];
    }
    total = (total + SumLanes(sum)) * page - s[n_pages - 1] * (page - last_page);
    const Vec scale = Set(1 / (total * group));
    for (j = 0; j < n_pages; j += kLanes) {
      const int n = MinInt(kLanes, n_pages - j);
      Vec w = LoadFirst(s + j, n) * scale;
      if (g > 0) w = w + LoadFirst(weights + j, n);
      StoreFirst(weights + j, n, w);
    }
  }
}

}  // namespace

const DecodeKernels kDecode = {AttendRows, RowScores, PageScores, PageWeights};

}  // namespace sluice::SLUICE_ISA
