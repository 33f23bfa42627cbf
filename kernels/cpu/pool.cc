#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// The window of out[i], i.e. x[i - width/2 .. i + width/2], is cut by a multiple of `width` in two: a suffix
// of one block and a prefix of the next. So running results inside blocks give every window in O(1) (van Herk
// 1992). For sums too: nothing is ever subtracted. scratch [2 * (n + 2 * width)].
template <class Combine>
void PoolWindows(const float* x, int64_t n, int width, float pad, Combine combine, float* scratch,
                 float* out) {
  const int64_t half = width / 2, padded = (n + 2 * half + width - 1) / width * width;
  auto at = [&](int64_t i) { return i >= half && i < half + n ? x[i - half] : pad; };
  float* prefix = scratch;
  float* suffix = scratch + padded;
  for (int64_t block = 0; block < padded; block += width) {
    prefix[block] = at(block);
    for (int64_t i = block + 1; i < block + width; ++i) prefix[i] = combine(prefix[i - 1], at(i));
    suffix[block + width - 1] = at(block + width - 1);
    for (int64_t i = block + width - 2; i >= block; --i) suffix[i] = combine(suffix[i + 1], at(i));
  }
  for (int64_t i = 0; i < n; ++i)
    out[i] = i % width == 0 ? prefix[i + width - 1] : combine(suffix[i], prefix[i + width - 1]);
}

std::vector<float> FadingWeights(float reach) {
  std::vector<float> weights(static_cast<size_t>(32 * reach) + 1);
  for (size_t d = 0; d < weights.size(); ++d)
    weights[d] = static_cast<float>(std::exp(-static_cast<double>(d) / reach));
  return weights;
}

}  // namespace

void CpuOps::Pool(TensorView scores, const Pooling& pooling, TensorView out) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(out, DType::kF32, {heads, n}));
  if (pooling.kind == Pooling::kFading) {
    SLUICE_CHECK(pooling.after > 0 && pooling.before > 0);
    const std::vector<float> after = FadingWeights(pooling.after), before = FadingWeights(pooling.before);
    const int64_t left = after.size(), right = before.size();
    ThreadScratch scratch;
    if (!ReserveThreadScratch((left + n + right + 64) * sizeof(float), &scratch)) return;
    pool_.Run(static_cast<int>(heads), [&](int head, int thread) {
      const float* from = Row<float>(scores, head);
      float* to = Row<float>(out, head);
      float* x = reinterpret_cast<float*>(scratch.of(thread));
      std::fill(x, x + left, -std::numeric_limits<float>::infinity());
      std::copy(from, from + n, x + left);
      std::fill(x + left + n, x + left + n + right, -std::numeric_limits<float>::infinity());
      std::copy(from, from + n, to);
      const float x_max = n > 0 ? *std::max_element(from, from + n) : 0;
      kernels_.row->fade(x + left, static_cast<int>(n), after.data(), static_cast<int>(left), -1, x_max, to);
      kernels_.row->fade(x + left, static_cast<int>(n), before.data(), static_cast<int>(right), 1, x_max, to);
    });
    return;
  }
  const int width = pooling.kernel;
  if (pooling.kind == Pooling::kChunk) {
    SLUICE_CHECK(width >= 1);
    pool_.Run(static_cast<int>(heads), [&](int head, int) {
      const float* from = Row<float>(scores, head);
      float* to = Row<float>(out, head);
      for (int64_t begin = 0; begin < n; begin += width) {
        const int64_t end = std::min(begin + width, n);
        const float sum = std::accumulate(from + begin, from + end, 0.f);
        std::fill(to + begin, to + end, sum / static_cast<float>(end - begin));
      }
    });
    return;
  }
  SLUICE_CHECK(width >= 1 && width % 2 == 1);
  ThreadScratch scratch;
  if (!ReserveThreadScratch(2 * (n + 2 * width) * sizeof(float), &scratch)) return;
  pool_.Run(static_cast<int>(heads), [&](int head, int thread) {
    float* memory = reinterpret_cast<float*>(scratch.of(thread));
    float* to = Row<float>(out, head);
    if (pooling.kind == Pooling::kMax) {
      PoolWindows(
          Row<float>(scores, head), n, width, -std::numeric_limits<float>::infinity(),
          [](float a, float b) { return a > b ? a : b; }, memory, to);
    } else {
      PoolWindows(
          Row<float>(scores, head), n, width, 0.f, [](float a, float b) { return a + b; }, memory, to);
      for (int64_t i = 0; i < n; ++i) to[i] /= static_cast<float>(width);
    }
  });
}

}  // namespace sluice
