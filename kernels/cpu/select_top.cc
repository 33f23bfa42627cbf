#include <cstdint>

#include "common/base/status.h"
#include "kernels/cpu/chosen_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int64_t heads = scores.shape[0], n = scores.shape[1];
  SLUICE_CHECK(k >= 0 && k <= n && tail >= 0);
  SLUICE_CHECK(Is(scores, DType::kF32, {heads, n}) && Is(rows, DType::kI32, {heads, k + tail}));
  ThreadScratch scratch;
  if (!ReserveThreadScratch(n * sizeof(uint32_t), &scratch)) return;
  pool_.Run(static_cast<int>(heads), [&](int head, int thread) {
    int32_t* out = Row<int32_t>(rows, head);
    ChooseBest(Row<float>(scores, head), n, k, reinterpret_cast<uint32_t*>(scratch.of(thread)), out);
    for (int i = 0; i < tail; ++i) out[k + i] = static_cast<int32_t>(n + i);
  });
}

}  // namespace sluice
