#include <cmath>
#include <limits>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {
namespace {

int32_t BestColumn(const float* row, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = -kInfinity;
  int32_t at = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(row[i]) || row[i] == kInfinity) return -1;
    if (row[i] > best) {
      best = row[i];
      at = static_cast<int32_t>(i);
    }
  }
  return at;
}

}  // namespace

void CpuOps::ArgMax(TensorView x, TensorView out) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  SLUICE_CHECK(Is(x, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}));
  ForRange(rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.as<int32_t>()[i] = BestColumn(Row<float>(x, i), n);
  });
}

}  // namespace sluice
