#include "kernels/cpu/decode_split.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

void DecodeParts::Clear(int64_t i) const {
  DecodePartial p = part(i);
  std::fill(p.m, p.m + group_, -std::numeric_limits<float>::infinity());
  std::fill(p.l, p.l + group_, 0.f);
  std::fill(p.o, p.o + group_ * head_dim_, 0.f);
}

void DecodeParts::Merge(int64_t begin, int64_t end, float* out) const {
  for (int g = 0; g < group_; ++g) {
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t i = begin; i < end; ++i) max = std::max(max, part(i).m[g]);
    for (int64_t i = begin; i < end; ++i) sum += part(i).l[g] * std::exp(part(i).m[g] - max);
    float* to = out + g * head_dim_;
    std::fill(to, to + head_dim_, 0.f);
    for (int64_t i = begin; i < end; ++i) {
      const float scale = std::exp(part(i).m[g] - max) / sum;
      const float* o = part(i).o + g * head_dim_;
      for (int d = 0; d < head_dim_; ++d) to[d] += o[d] * scale;
    }
  }
}

}  // namespace sluice
