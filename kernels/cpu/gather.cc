#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {

void CpuOps::GatherRows(TensorView x, TensorView rows, TensorView out) {
  const int64_t n = x.shape[0], c = x.shape[1], m = rows.shape[0];
  SLUICE_CHECK(DTypeSize(x.dtype) == 4 && Is(x, x.dtype, {n, c}) && Is(out, x.dtype, {m, c}));
  SLUICE_CHECK(Is(rows, DType::kI32, {m}));
  ForRange(m, c, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t row = rows.as<int32_t>()[i];
      SLUICE_CHECK(row >= 0 && row < n);
      std::memcpy(Row<uint32_t>(out, i), Row<uint32_t>(x, row), c * sizeof(uint32_t));
    }
  });
}

void CpuOps::GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows,
                      absl::Span<const int> kept, TensorView k_out, TensorView v_out,
                      TensorView positions_out) {
  SLUICE_CHECK(k.rank == 3 && IsKvDType(k.dtype));
  const int64_t heads = k.shape[0], len = k.shape[1], d = k.shape[2], capacity = rows.shape[1];
  int64_t total = 0;
  SLUICE_CHECK(static_cast<int64_t>(kept.size()) == heads);
  for (int n : kept) {
    SLUICE_CHECK(n >= 0 && n <= capacity);
    total += n;
  }
  SLUICE_CHECK(Is(k, k.dtype, {heads, len, d}) && Is(v, k.dtype, {heads, len, d}));
  SLUICE_CHECK(Is(positions, DType::kI32, {heads, len}) && Is(rows, DType::kI32, {heads, capacity}));
  SLUICE_CHECK(Is(k_out, k.dtype, {total, d}) && Is(v_out, k.dtype, {total, d}));
  SLUICE_CHECK(Is(positions_out, DType::kI32, {total}));
  const size_t bytes = d * DTypeSize(k.dtype);
  int64_t first = 0;
  for (int64_t h = 0; h < heads; first += kept[h++]) {
    ForRange(kept[h], 2 * d, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = Row<int32_t>(rows, h)[i];
        SLUICE_CHECK(row >= 0 && row < len);
        std::memcpy(RowBytes(k_out, first + i, 0), RowBytes(k, h, row), bytes);
        std::memcpy(RowBytes(v_out, first + i, 0), RowBytes(v, h, row), bytes);
        positions_out.as<int32_t>()[first + i] = Row<int32_t>(positions, h)[row];
      }
    });
  }
}

}  // namespace sluice
