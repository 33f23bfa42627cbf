#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) {
  CheckStoreKv(k, v, k_out, v_out);
  const int64_t n = k.shape[0], heads = k.shape[1], d = k.shape[2];
  auto store = [&](const float* from, const TensorView& to, int64_t h, int64_t i) {
    if (to.dtype == DType::kBF16) {
      kernels_.row->round_to_bf16(from, static_cast<int>(d), Row<uint16_t>(to, h, i));
    } else {
      std::memcpy(Row<float>(to, h, i), from, d * sizeof(float));
    }
  };
  ForRange(n, 2 * heads * d, [&](int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = begin; i < end; ++i) {
        store(Row<float>(k, i, h), k_out, h, i);
        store(Row<float>(v, i, h), v_out, h, i);
      }
    }
  });
}

}  // namespace sluice
