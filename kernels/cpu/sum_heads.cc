#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::SumHeads(TensorView scores, TensorView out) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(out, DType::kF32, {n}));
  ForRange(n, heads, [&](int64_t begin, int64_t end) {
    float* to = out.as<float>() + begin;
    std::memset(to, 0, (end - begin) * sizeof(float));
    for (int64_t h = 0; h < heads; ++h)
      kernels_.row->add(Row<float>(scores, h) + begin, static_cast<int>(end - begin), to);
  });
}

}  // namespace sluice
