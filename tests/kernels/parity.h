// Role: what every parity test shares: the backends under test, tensors that exist on host and device at
// once, and comparisons. A test runs an op on device views and its reference on host views; then whole
// allocations are compared, so that a write outside of an output is found as surely as a wrong value. Fresh
// outputs and the guards around every tensor hold NaN patterns.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/reference.h"

namespace sluice {

struct BackendCase {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>()> make;
  DType kv_dtype = DType::kBF16;
  bool rounds_activations = false;  // MatMul rounds x to bf16
  bool rounds_queries = false;      // Attention and WindowScores round q to bf16
  int equal_rows = 1 << 30;         // a MatMul row is the same, bit for bit, in calls of up to so many rows
  // What attention may be off by beyond f32 arithmetic: a scaled score, a weight relatively (Attention), and
  // both together (decode). 0 where everything is f32.
  double score_error = 0, weight_error = 0, decode_error = 0;
  double output_error =
      0;  // an output of Attention on top, relative to its value: half a unit of its rounding
};
inline void PrintTo(const BackendCase& c, std::ostream* os) { *os << c.name; }

std::vector<BackendCase> AllBackends();
inline std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.name; }

// Tolerances, all absolute. u = 2^-24 is f32's rounding unit.
//
// A sum of n terms of size m takes n roundings of partial sums of about m sqrt(n): as a random walk, an error
// of u m n. Four times that is never reached by chance over the elements that a test compares.
inline double SumTolerance(double n, double m) { return 4 * std::ldexp(1, -24) * n * m; }
// Attention: a score (d terms of size 1/sqrt(d) after scaling; q and k of unit variance) is off by
// SumTolerance(d, 1/sqrt(d)) = 4 u sqrt(d), and its exp by as much, relatively; outputs are averages of
// values of size 1, so they move no more than that, plus 2e-7 of the exp itself.
inline double AttentionTolerance(int head_dim) { return 4 * std::ldexp(1, -24) * std::sqrt(head_dim) + 4e-7; }
// With weights that are off by weight_error relatively, an average of values of size 1 moves by as much as
// the mean size of the values; three is never reached by the values of a test.
inline double AttentionTolerance(const BackendCase& c, int head_dim) {
  return AttentionTolerance(head_dim) + c.score_error + 3 * c.weight_error;
}
inline double ScoreTolerance(const BackendCase& c, int head_dim) {
  return AttentionTolerance(head_dim) + c.score_error;
}
inline double DecodeTolerance(const BackendCase& c, int head_dim) {
  return AttentionTolerance(head_dim) + c.decode_error;
}
// One or two roundings and an exp, relative to values of size m.
inline double ElementTolerance(double m) { return 8 * std::ldexp(1, -24) * m; }

class Tensor {
 public:
  TensorView host, device;

  // Slices keep both sides together.
  Tensor Slice(int dim, int64_t begin, int64_t end) const {
    Tensor t = *this;
    t.host = host.Slice(dim, begin, end);
    t.device = device.Slice(dim, begin, end);
    return t;
  }
  Tensor At(int64_t i) const {
    Tensor t = *this;
    t.host = host.At(i);
    t.device = device.At(i);
    return t;
  }
  // The last dimension c as [heads, c / heads].
  Tensor Heads(int64_t heads) const {
    Tensor t = *this;
    for (TensorView* view : {&t.host, &t.device}) {
      const int last = view->rank - 1;
      view->shape[last + 1] = view->shape[last] / heads;
      view->stride[last + 1] = 1;
      view->shape[last] = heads;
      view->stride[last] = view->shape[last + 1];
      ++view->rank;
    }
    return t;
  }

 private:
  friend class ParityTest;
  struct Memory {
    std::vector<char> host;
    Buffer device;
  };
  std::shared_ptr<Memory> memory_;
};

class ParityTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override;

  DType kv_dtype() const { return GetParam().kv_dtype; }
  Backend& backend() { return *backend_; }
  Ops& ops() { return *ops_; }

  Tensor Poisoned(DType dtype, std::initializer_list<int64_t> shape);
  // Standard normal times scale.
  Tensor Random(DType dtype, std::initializer_list<int64_t> shape, float scale = 1);
  Tensor Ints(std::initializer_list<int64_t> shape, const std::vector<int>& values);
  Tensor Floats(std::initializer_list<int64_t> shape, const std::vector<float>& values);
  // A weight matrix: f32 host values that are exact in bf16, and its packed form.
  std::pair<Tensor, std::unique_ptr<Matrix>> RandomMatrix(int64_t rows, int64_t cols);
  void Upload(const Tensor& tensor);  // the whole allocation, after host values changed
  // The host side as a backend sees it that rounds its inputs to bf16.
  static void RoundOnHost(const Tensor& tensor);

  // Syncs, then compares the whole allocation against the host's. relative: of a value, on top of tolerance.
  void ExpectSame(const Tensor& tensor, double tolerance, const std::string& what = "", double relative = 0);
  // The device's bytes of the whole allocation.
  std::vector<char> Download(const Tensor& tensor);

  std::mt19937 random_{7};

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace sluice
