#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::ArgMax(TensorView x, TensorView out) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  SLUICE_CHECK(Is(x, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}));
  ForRange(rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out.as<int32_t>()[i] = BestToken(absl::MakeConstSpan(Row<float>(x, i), static_cast<size_t>(n)));
  });
}

}  // namespace sluice
