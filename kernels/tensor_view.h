// Role: how tensors are named between layers: a pointer, a dtype, a shape and strides. A view owns nothing;
// its memory belongs to a Buffer, or on a CPU to anyone. On a GPU `data` is a device pointer: only Ops reads
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace sluice {

enum class DType : uint8_t { kF32, kBF16, kI32 };

constexpr size_t DTypeSize(DType dtype) { return dtype == DType::kBF16 ? 2 : 4; }

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape = {};
  std::array<int64_t, 4> stride = {};  // in elements; 0 repeats one entry along that dimension

  static TensorView Contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    for (int64_t n : shape) view.shape[view.rank++] = n;
    int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.stride[i] = stride;
      stride *= view.shape[i];
    }
    return view;
  }

  bool empty() const { return data == nullptr; }

  // Rows [begin, end) of dimension `dim`; shares memory.
  TensorView Slice(int dim, int64_t begin, int64_t end) const {
    TensorView view = *this;
    view.data = static_cast<char*>(data) + begin * stride[dim] * static_cast<int64_t>(DTypeSize(dtype));
    view.shape[dim] = end - begin;
    return view;
  }

  // Drops dimension 0 by taking entry `i` of it.
  TensorView At(int64_t i) const {
    TensorView view = Slice(0, i, i + 1);
    --view.rank;
    for (int d = 0; d < view.rank; ++d) {
      view.shape[d] = view.shape[d + 1];
      view.stride[d] = view.stride[d + 1];
    }
    view.shape[view.rank] = view.stride[view.rank] = 0;
    return view;
  }

  // Host memory only.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace sluice
