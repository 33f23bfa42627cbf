#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// Unsigned keys in the order of the scores; +0 makes -0 equal 0.
uint32_t OrderedKey(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// keys: scratch [n].
void SelectRow(const float* scores, int64_t n, int64_t k, uint32_t* keys, int32_t* rows) {
  if (k == 0) return;
  for (int64_t i = 0; i < n; ++i) keys[i] = OrderedKey(scores[i]);
  std::nth_element(keys, keys + k - 1, keys + n, std::greater<uint32_t>());
  const uint32_t cut = keys[k - 1];
  int64_t above = 0;  // nth_element leaves everything greater in front
  for (int64_t i = 0; i < k; ++i) above += keys[i] > cut;
  int64_t ties = k - above;  // rows equal to the cut that still fit, lowest first
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = OrderedKey(scores[i]);
    if (key > cut || (key == cut && ties-- > 0)) *rows++ = static_cast<int32_t>(i);
  }
}

}  // namespace

void CpuOps::SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(k >= 0 && k <= n && tail >= 0);
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(rows, DType::kI32, {heads, k + tail}));
  ThreadScratch scratch;
  if (!ReserveThreadScratch(n * sizeof(uint32_t), &scratch)) return;
  pool_.Run(static_cast<int>(heads), [&](int head, int thread) {
    int32_t* out = Row<int32_t>(rows, head);
    SelectRow(Row<float>(scores, head), n, k, reinterpret_cast<uint32_t*>(scratch.of(thread)), out);
    for (int i = 0; i < tail; ++i) out[k + i] = static_cast<int32_t>(n + i);
  });
}

}  // namespace sluice
