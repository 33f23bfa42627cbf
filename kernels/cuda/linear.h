// Role: matrix products of many rows by cuBLASLt: bf16 x bf16, sums and outputs f32. One algorithm per shape,
// asked for once and kept: a shape that ran before can be captured into a graph. Threads: those of its queue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "kernels/cuda/cublas_lt.h"

namespace sluice {

// out [n, rows] = x [n, k] w^T + bias, or with accumulate out += x w^T + bias. x, w bf16.
struct GemmArgs {
  const void* x;  // [n, k], rows of k values
  const void* w;  // [rows, k]
  int64_t n, rows, k;
  const float* bias;  // or null
  bool accumulate;
  float* out;
  int64_t out_stride;
};

class Linear {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  explicit Linear(std::shared_ptr<const CublasLt> cublas);
  ~Linear();

  // Whether Run takes it: whole vectors in every row of out. k is a multiple of 64.
  static bool Takes(const GemmArgs& args);
  absl::Status Run(const GemmArgs& args, void* workspace, cudaStream_t stream);

 private:
  struct Plan;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool>;

  absl::Status MakePlan(const GemmArgs& args, std::unique_ptr<Plan>* plan);

  const std::shared_ptr<const CublasLt> lt_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace sluice
