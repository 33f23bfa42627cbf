#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/views.h"

namespace sluice {
namespace {

bool In16Bytes(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

// grid m. T: 4 or 16 bytes; strides and c in T.
template <class T>
__global__ void TakeRows(const T* x, int64_t x_stride, int64_t n, int c, const int32_t* rows, T* out,
                         int64_t out_stride) {
  const int32_t row = rows[blockIdx.x];
  SLUICE_DEVICE_CHECK(row >= 0 && row < n);
  for (int i = threadIdx.x; i < c; i += blockDim.x) out[blockIdx.x * out_stride + i] = x[row * x_stride + i];
}

// Where each head's kept rows begin in the output.
constexpr int kMaxHeads = 256;
struct FirstRows {
  int64_t of[kMaxHeads + 1];
};

template <class T>
struct KvRows {
  const T *k, *v;
  int64_t k_head, k_row, v_head, v_row;  // in T
  T *k_out, *v_out;
  int64_t k_out_row, v_out_row;
  const int32_t* positions;
  int64_t positions_head;
  const int32_t* rows;
  int64_t rows_head;
  int32_t* positions_out;
  int64_t len;
  int row_values;  // a row in T
};

// grid (rows of 8, heads), a warp per kept row.
template <class T>
__global__ void TakeKvRows(KvRows<T> a, const __grid_constant__ FirstRows first) {
  const int head = blockIdx.y, lane = threadIdx.x % kWarp;
  const int64_t i = blockIdx.x * int64_t{blockDim.x / kWarp} + threadIdx.x / kWarp, to = first.of[head] + i;
  if (to >= first.of[head + 1]) return;
  const int32_t row = a.rows[head * a.rows_head + i];
  SLUICE_DEVICE_CHECK(row >= 0 && row < a.len);
  const T* k = a.k + head * a.k_head + row * a.k_row;
  const T* v = a.v + head * a.v_head + row * a.v_row;
  for (int c = lane; c < a.row_values; c += kWarp) {
    a.k_out[to * a.k_out_row + c] = k[c];
    a.v_out[to * a.v_out_row + c] = v[c];
  }
  if (lane == 0) a.positions_out[to] = a.positions[head * a.positions_head + row];
}

}  // namespace

void CudaOps::GatherRows(TensorView x, TensorView rows, TensorView out) {
  const int64_t n = x.shape[0], c = x.shape[1], m = rows.shape[0];
  SLUICE_CHECK(DTypeSize(x.dtype) == 4 && Is(x, x.dtype, {n, c}) && Is(out, x.dtype, {m, c}));
  SLUICE_CHECK(Is(rows, DType::kI32, {m}));
  if (m == 0) return;
  Begin();
  if (c % 4 == 0 && In16Bytes(x.data, x.stride[0] * 4) && In16Bytes(out.data, out.stride[0] * 4)) {
    TakeRows<<<m, 256, 0, stream_>>>(x.as<uint4>(), x.stride[0] / 4, n, static_cast<int>(c / 4),
                                     rows.as<int32_t>(), out.as<uint4>(), out.stride[0] / 4);
  } else {
    TakeRows<<<m, 256, 0, stream_>>>(x.as<uint32_t>(), x.stride[0], n, static_cast<int>(c),
                                     rows.as<int32_t>(), out.as<uint32_t>(), out.stride[0]);
  }
  Launched("GatherRows");
}

void CudaOps::GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows,
                       absl::Span<const int> kept, TensorView k_out, TensorView v_out,
                       TensorView positions_out) {
  SLUICE_CHECK(k.rank == 3 && IsKvDType(k.dtype));
  const int64_t heads = k.shape[0], len = k.shape[1], d = k.shape[2], capacity = rows.shape[1];
  SLUICE_CHECK(static_cast<int64_t>(kept.size()) == heads && heads <= kMaxHeads);
  FirstRows first;
  first.of[0] = 0;
  int most = 0;
  for (int64_t h = 0; h < heads; ++h) {
    SLUICE_CHECK(kept[h] >= 0 && kept[h] <= capacity);
    first.of[h + 1] = first.of[h] + kept[h];
    most = kept[h] > most ? kept[h] : most;
  }
  const int64_t total = first.of[heads];
  SLUICE_CHECK(Is(k, k.dtype, {heads, len, d}) && Is(v, k.dtype, {heads, len, d}));
  SLUICE_CHECK(Is(positions, DType::kI32, {heads, len}) && Is(rows, DType::kI32, {heads, capacity}));
  SLUICE_CHECK(Is(k_out, k.dtype, {total, d}) && Is(v_out, k.dtype, {total, d}));
  SLUICE_CHECK(Is(positions_out, DType::kI32, {total}));
  if (total == 0) return;
  Begin();
  const int64_t bytes = static_cast<int64_t>(DTypeSize(k.dtype));
  auto start = [&](auto unit) {
    using T = decltype(unit);
    const int64_t per = static_cast<int64_t>(sizeof(T)) / bytes;  // elements in a T
    const KvRows<T> a = {k.as<T>(),
                         v.as<T>(),
                         k.stride[0] / per,
                         k.stride[1] / per,
                         v.stride[0] / per,
                         v.stride[1] / per,
                         k_out.as<T>(),
                         v_out.as<T>(),
                         k_out.stride[0] / per,
                         v_out.stride[0] / per,
                         positions.as<int32_t>(),
                         positions.stride[0],
                         rows.as<int32_t>(),
                         rows.stride[0],
                         positions_out.as<int32_t>(),
                         len,
                         static_cast<int>(d / per)};
    TakeKvRows<<<dim3(CeilDiv(most, 8), heads), 8 * kWarp, 0, stream_>>>(a, first);
  };
  bool wide = true;
  for (const TensorView* view : {&k, &v})
    wide &= In16Bytes(view->data, view->stride[0] * bytes) && view->stride[1] * bytes % 16 == 0;
  for (const TensorView* view : {&k_out, &v_out}) wide &= In16Bytes(view->data, view->stride[0] * bytes);
  if (wide) {
    start(uint4());
  } else if (bytes == 4) {
    start(uint32_t());
  } else {
    start(uint16_t());
  }
  Launched("GatherKv");
}

}  // namespace sluice
