#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// A view of rank 3: leading dimensions of 1 added.
TensorView AsRank3(TensorView view) {
  TensorView out = view;
  out.rank = 3;
  const int added = 3 - view.rank;
  for (int d = 0; d < 3; ++d) {
    out.shape[d] = d < added ? 1 : view.shape[d - added];
    out.stride[d] = d < added ? 0 : view.stride[d - added];
  }
  return out;
}

template <class T>
void CopyRow(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, n * sizeof(T));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <class T>
void CopyRows(const TensorView& src, const TensorView& dst, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t i = row / src.shape[1], j = row % src.shape[1];
    CopyRow(src.as<T>() + i * src.stride[0] + j * src.stride[1], src.stride[2],
            dst.as<T>() + i * dst.stride[0] + j * dst.stride[1], dst.stride[2], src.shape[2]);
  }
}

}  // namespace

void CpuOps::CopyIn(const void* host, TensorView dst) {
  SLUICE_CHECK(IsContiguous(dst));
  if (Bytes(dst) > 0) std::memcpy(dst.data, host, Bytes(dst));
}

void CpuOps::CopyOut(TensorView src, void* host) {
  SLUICE_CHECK(IsContiguous(src));
  if (Bytes(src) > 0) std::memcpy(host, src.data, Bytes(src));
}

void CpuOps::Copy(TensorView src, TensorView dst) {
  SLUICE_CHECK(src.rank == dst.rank && src.rank <= 3 && src.dtype == dst.dtype && src.shape == dst.shape);
  // One run needs no pool, whose jobs wait for each other.
  if (IsContiguous(src) && IsContiguous(dst)) {
    if (Bytes(src) > 0) std::memcpy(dst.data, src.data, Bytes(src));
    return;
  }
  const TensorView from = AsRank3(src), to = AsRank3(dst);
  ForRange(from.shape[0] * from.shape[1], from.shape[2], [&](int64_t begin, int64_t end) {
    DTypeSize(from.dtype) == 2 ? CopyRows<uint16_t>(from, to, begin, end)
                               : CopyRows<uint32_t>(from, to, begin, end);
  });
}

}  // namespace sluice
