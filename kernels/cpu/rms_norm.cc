#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) {
  SLUICE_CHECK(x.rank == 2 || x.rank == 3);
  const int64_t c = x.shape[x.rank - 1];
  const int64_t n = x.shape[0], heads = x.rank == 3 ? x.shape[1] : 1;
  if (x.rank == 2) {
    SLUICE_CHECK(Is(x, DType::kF32, {n, c}) && Is(out, DType::kF32, {n, c}));
  } else {
    SLUICE_CHECK(Is(x, DType::kF32, {n, heads, c}) && Is(out, DType::kF32, {n, heads, c}));
  }
  SLUICE_CHECK(Is(weight, DType::kF32, {c}));
  const int64_t x_head = x.rank == 3 ? x.stride[1] : 0, out_head = x.rank == 3 ? out.stride[1] : 0;
  ForRange(n, heads * c, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t h = 0; h < heads; ++h)
        kernels_.row->rms_norm(Row<float>(x, i) + h * x_head, weight.as<float>(), eps, static_cast<int>(c),
                               Row<float>(out, i) + h * out_head);
  });
}

}  // namespace sluice
