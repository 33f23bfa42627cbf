// Role: what ops ask of their views, on every backend. A wrong shape is a bug of the caller:
// SLUICE_CHECK(Is(...)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/tensor_view.h"

namespace sluice {

// dtype, shape, and rows without gaps: the last dimension has stride 1.
inline bool Is(const TensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  if (view.dtype != dtype || view.rank != static_cast<int>(shape.size())) return false;
  int d = 0;
  for (int64_t n : shape)
    if (view.shape[d++] != n) return false;
  return view.rank == 0 || view.shape[view.rank - 1] <= 1 || view.stride[view.rank - 1] == 1;
}

// No gaps at all.
inline bool IsContiguous(const TensorView& view) {
  int64_t expected = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.shape[d] != 1 && view.stride[d] != expected) return false;
    expected *= view.shape[d];
  }
  return true;
}

inline size_t Bytes(const TensorView& view) {
  size_t n = DTypeSize(view.dtype);
  for (int d = 0; d < view.rank; ++d) n *= view.shape[d];
  return n;
}

inline bool IsKvDType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }
inline bool IsProductInput(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// Row (i) or (i, j) of a view whose rows have no gaps.
template <class T>
T* Row(const TensorView& view, int64_t i) {
  return static_cast<T*>(view.data) + i * view.stride[0];
}
template <class T>
T* Row(const TensorView& view, int64_t i, int64_t j) {
  return static_cast<T*>(view.data) + i * view.stride[0] + j * view.stride[1];
}
// The same when the element size is known at run time only.
inline char* RowBytes(const TensorView& view, int64_t i, int64_t j) {
  return static_cast<char*>(view.data) +
         (i * view.stride[0] + j * view.stride[1]) * static_cast<int64_t>(DTypeSize(view.dtype));
}

}  // namespace sluice
