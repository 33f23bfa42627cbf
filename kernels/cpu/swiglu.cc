#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::SwiGlu(TensorView gate_up, TensorView out) {
  const int64_t n = out.shape[0], c = out.shape[1];
  SLUICE_CHECK(Is(gate_up, DType::kF32, {n, 2 * c}) && Is(out, DType::kF32, {n, c}));
  ForRange(n, 4 * c, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      kernels_.row->swiglu(Row<float>(gate_up, i), Row<float>(gate_up, i) + c, static_cast<int>(c),
                           Row<float>(out, i));
  });
}

}  // namespace sluice
