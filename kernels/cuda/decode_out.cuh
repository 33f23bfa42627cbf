// Role: where decode attention writes: f32, or bf16 where the product after it rounds to that anyway.
// Threads: passed to kernels by value.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/tensor_view.h"

namespace sluice {

struct DecodeOut {
  void* data;  // [batch, heads * group * d]
  int64_t stride;
  bool is_bf16;

  explicit DecodeOut(const TensorView& out)
      : data(out.data), stride(out.stride[0]), is_bf16(out.dtype == DType::kBF16) {}

  template <class T>
  __device__ T* At(int entry, int column) const {
    return static_cast<T*>(data) + entry * stride + column;
  }
  // column: a multiple of 4, as strides are; data at a multiple of 16 bytes.
  __device__ void Put(int entry, int column, float4 y) const {
    if (is_bf16) {
      *reinterpret_cast<uint2*>(At<Bf16>(entry, column)) = make_uint2(PackBf16(y.x, y.y), PackBf16(y.z, y.w));
    } else {
      *reinterpret_cast<float4*>(At<float>(entry, column)) = y;
    }
  }
};

}  // namespace sluice
