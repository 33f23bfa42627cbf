#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) {
  CheckRope(x, positions, cos_sin, shift);
  const int64_t n = x.shape[0], heads = x.shape[1], d = x.shape[2], context = cos_sin.shape[0];
  ForRange(n, heads * d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t position = positions.as<int32_t>()[i];
      SLUICE_CHECK(position >= 0 && position < context);
      for (int64_t h = 0; h < heads; ++h)
        kernels_.row->rope(Row<float>(x, i, h), Row<float>(cos_sin, position),
                           shift.empty() ? nullptr : Row<float>(shift, h), static_cast<int>(d));
    }
  });
}

}  // namespace sluice
