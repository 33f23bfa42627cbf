// Elementwise and row kernels.

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/vec.h"

namespace sluice::SLUICE_ISA {
namespace {

void RmsNorm(const float* x, const float* weight, float eps, int n, float* out) {
  Vec sums[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int i = 0, lane = 0; i < n; i += kLanes, lane = (lane + 1) & 3) {
    Vec v = LoadFirst(x + i, MinInt(kLanes, n - i));
    sums[lane] = MulAdd(v, v, sums[lane]);
  }
  const float mean = SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3])) / n;
  const Vec scale = Set(1 / __builtin_sqrtf(mean + eps));
  for (int i = 0; i < n; i += kLanes) {
    const int left = MinInt(kLanes, n - i);
    StoreFirst(out + i, left, LoadFirst(x + i, left) * scale * LoadFirst(weight + i, left));
  }
}

void Rope(float* x, const float* cos_sin, const float* shift, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int n = MinInt(kLanes, half - i);
    const Vec a = LoadFirst(x + i, n), b = LoadFirst(x + half + i, n);
    const Vec c = LoadFirst(cos_sin + i, n), s = LoadFirst(cos_sin + half + i, n);
    Vec low = MulAdd(a, c, Zero() - b * s), high = MulAdd(b, c, a * s);
    if (shift != nullptr) {
      low = low - LoadFirst(shift + i, n);
      high = high - LoadFirst(shift + half + i, n);
    }
    StoreFirst(x + i, n, low);
    StoreFirst(x + half + i, n, high);
  }
}

void SwiGlu(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    const int left = MinInt(kLanes, n - i);
    const Vec g = LoadFirst(gate + i, left);
    StoreFirst(out + i, left, g / (Set(1) + Exp(Zero() - g)) * LoadFirst(up + i, left));
  }
}

void RoundToBf16(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; ++i) {
    union {
      float value;
      uint32_t bits;
    } u = {x[i]};
    const uint32_t nan = u.bits >> 16 | 0x40;
    const uint32_t rounded = (u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16;
    out[i] = static_cast<uint16_t>((u.bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
}

void Add(const float* x, int n, float* sum) {
  for (int i = 0; i < n; i += kLanes) {
    const int left = MinInt(kLanes, n - i);
    StoreFirst(sum + i, left, LoadFirst(sum + i, left) + LoadFirst(x + i, left));
  }
}

uint64_t Checksum(const uint32_t* words, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += uint64_t{words[i]} * static_cast<uint32_t>(2 * i + 1);
  return sum;
}

// Stops where even the largest x, faded, could not change a lane.
void Fade(const float* x, int n, const float* weights, int n_weights, int direction, float x_max,
          float* out) {
  constexpr int kStride = 16;
  for (int i = 0; i < n; i += kLanes) {
    const int left = MinInt(kLanes, n - i);
    Vec best = LoadFirst(out + i, left);
    for (int d0 = 0; d0 < n_weights; d0 += kStride) {
      const float bound = x_max > 0 ? x_max * weights[d0] : 0;
      if (left == kLanes && AllGe(best, Set(bound))) break;
      const int d1 = MinInt(d0 + kStride, n_weights);
      for (int d = d0; d < d1; ++d)
        best = Max(best, LoadFirst(x + i + d * direction, left) * Set(weights[d]));
    }
    StoreFirst(out + i, left, best);
  }
}

}  // namespace

const RowKernels kRow = {RmsNorm, Rope, SwiGlu, RoundToBf16, Add, Checksum, Fade};

}  // namespace sluice::SLUICE_ISA
