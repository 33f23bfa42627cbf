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
  bool accumulate;
  float* out;
  int64_t out_stride;
};

constexpr int kMatVecRows = 8;  // rows of x that one pass over the weights serves

void MatVec(const MatVecArgs& args, int n_sms, cudaStream_t stream);

}  // namespace sluice
