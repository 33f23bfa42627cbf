// Role: matrix products of few rows at the speed of memory: weights are read once, straight into tensor core
// fragments. Also the product for shapes a library does not take. A row's result does not depend on the
// number of rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice {

// out [n, rows] (+)= x [n, cols] w^T + bias, x rounded to bf16.
struct MatVecArgs {
  const void* x;  // f32, or bf16: then cols is a multiple of 64, and rows start at 16 bytes
  bool x_is_bf16;
  int64_t x_stride;
  int n;
  const void* w;  // bf16 [rows, w_stride], zeros past cols (row_matrix.h)
  int64_t w_stride;
  int rows, cols;
  const float* bias;  // or null
  bool accumulate = false;
  float* out;
  int64_t out_stride;

  // Instead of out: SwiGlu of it. w has gate rows, then as many up rows, a multiple of 8. Null: not asked
  // for.
  void* gated = nullptr;  // bf16 [n, rows / 2]
  int64_t gated_stride = 0;
  // Heads of `head_dim` in the first `turned` columns are rotated. head_dim is a multiple of 16 and divides
  // rows. 0: none.
  int turned = 0, head_dim = 0;
  const int32_t* positions = nullptr;  // [n]
  const float* cos_sin = nullptr;      // [context, head_dim]
  int64_t cos_sin_stride = 0, context = 0;
  const float* shift = nullptr;  // [heads, head_dim], or null
  int64_t shift_stride = 0;
};

constexpr int kMatVecRows = 8;  // rows of x that one pass over the weights serves

void MatVec(const MatVecArgs& args, int n_sms, cudaStream_t stream);

}  // namespace sluice
