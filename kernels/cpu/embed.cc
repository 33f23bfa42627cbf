#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::Embed(const Matrix& table, TensorView ids, TensorView out) {
  const auto& packed = static_cast<const PackedMatrix&>(table);
  const int64_t n = ids.shape[0];
  SLUICE_CHECK(Is(ids, DType::kI32, {n}) && Is(out, DType::kF32, {n, table.cols()}));
  ForRange(n, 16 * table.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t id = ids.as<int32_t>()[i];
      SLUICE_CHECK(id >= 0 && id < table.rows());
      packed.UnpackRow(id, Row<float>(out, i));
    }
  });
}

}  // namespace sluice
