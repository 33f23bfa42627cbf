#include "tests/kernels/parity.h"

#include "common/base/status.h"
#include "kernels/cpu/bf16.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

namespace sluice {
namespace {

constexpr size_t kGuard = 256;  // bytes before and after every tensor

bool IsPoison(const char* p, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (p[i] != '\xff') return false;
  return true;
}

}  // namespace

std::vector<BackendCase> AllBackends() {
  std::vector<BackendCase> cases;
  for (const char* name : {"avx2", "avx512", "avx512_bf16"}) {
    CpuIsa isa = *ParseCpuIsa(name);
    if (!CpuSupports(isa)) continue;
    for (DType dtype : {DType::kBF16, DType::kF32}) {
      BackendCase c;
      c.name = std::string("cpu_") + name + (dtype == DType::kBF16 ? "_bf16kv" : "_f32kv");
      c.make = [isa] {
        CpuOptions options;
        options.isa = isa;
        options.threads = 3;
        return NewCpuBackend(options);
      };
      c.kv_dtype = dtype;
      c.rounds_activations = isa == CpuIsa::kAvx512Bf16;
      cases.push_back(c);
    }
  }
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    BackendCase c;
    c.name = dtype == DType::kBF16 ? "cuda_bf16kv" : "cuda_f32kv";
    c.make = [] { return NewCudaBackend(0); };
    c.kv_dtype = dtype;
    c.rounds_activations = true;
    c.equal_rows = 8;
    if (dtype == DType::kBF16) {
      // Tensor cores: q and weights are bf16 in Attention, two bf16 parts each (16 bits) in decode; their f32
      // sums are cut, not rounded.
      c.rounds_queries = true;
      c.score_error = std::ldexp(1, -18);
      c.weight_error = std::ldexp(1, -9);
      c.decode_error = std::ldexp(1, -15);
      c.output_error = std::ldexp(1, -8);  // by cuDNN to bf16, of 8 bits
    }
    cases.push_back(c);
  }
  return cases;
}

void ParityTest::SetUp() {
  auto made = GetParam().make();
  if (absl::IsFailedPrecondition(made.status())) GTEST_SKIP() << made.status().message();
  ASSERT_TRUE(made.ok()) << made.status();
  backend_ = *std::move(made);
  ops_ = backend_->NewOps();
}

Tensor ParityTest::Poisoned(DType dtype, std::initializer_list<int64_t> shape) {
  size_t bytes = DTypeSize(dtype);
  for (int64_t n : shape) bytes *= n;
  Tensor t;
  t.memory_ = std::make_shared<Tensor::Memory>();
  t.memory_->host.assign(bytes + 2 * kGuard, '\xff');
  t.memory_->device = backend_->Allocate(bytes + 2 * kGuard).value();
  t.host = TensorView::Contiguous(t.memory_->host.data() + kGuard, dtype, shape);
  t.device = TensorView::Contiguous(static_cast<char*>(t.memory_->device.data()) + kGuard, dtype, shape);
  Upload(t);
  return t;
}

void ParityTest::Upload(const Tensor& t) {
  const std::vector<char>& host = t.memory_->host;
  ops_->CopyIn(host.data(), TensorView::Contiguous(t.memory_->device.data(), DType::kBF16,
                                                   {static_cast<int64_t>(host.size() / 2)}));
}

void ParityTest::RoundOnHost(const Tensor& t) {
  SLUICE_CHECK(t.host.dtype == DType::kF32 && t.host.rank == 2);
  for (int64_t i = 0; i < t.host.shape[0]; ++i)
    for (int64_t j = 0; j < t.host.shape[1]; ++j)
      reference::Set(t.host, Bf16ToFloat(RoundToBf16(static_cast<float>(reference::Get(t.host, i, j)))), i,
                     j);
}

Tensor ParityTest::Random(DType dtype, std::initializer_list<int64_t> shape, float scale) {
  Tensor t = Poisoned(dtype, shape);
  std::normal_distribution<float> normal;
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  for (int64_t i = 0; i < n; ++i) {
    const float x = normal(random_) * scale;
    if (dtype == DType::kBF16) {
      t.host.as<uint16_t>()[i] = RoundToBf16(x);
    } else {
      t.host.as<float>()[i] = x;
    }
  }
  Upload(t);
  return t;
}

Tensor ParityTest::Ints(std::initializer_list<int64_t> shape, const std::vector<int>& values) {
  Tensor t = Poisoned(DType::kI32, shape);
  std::memcpy(t.host.data, values.data(), values.size() * sizeof(int));
  Upload(t);
  return t;
}

Tensor ParityTest::Floats(std::initializer_list<int64_t> shape, const std::vector<float>& values) {
  Tensor t = Poisoned(DType::kF32, shape);
  std::memcpy(t.host.data, values.data(), values.size() * sizeof(float));
  Upload(t);
  return t;
}

std::pair<Tensor, std::unique_ptr<Matrix>> ParityTest::RandomMatrix(int64_t rows, int64_t cols) {
  Tensor t = Random(DType::kF32, {rows, cols});
  float* w = t.host.as<float>();
  for (int64_t i = 0; i < rows * cols; ++i) w[i] = Bf16ToFloat(RoundToBf16(w[i]));
  auto packed = backend_->PackMatrix(rows, cols, [&](int64_t begin, int64_t end, float* out) {
    std::memcpy(out, w + begin * cols, (end - begin) * cols * sizeof(float));
    return absl::OkStatus();
  });
  return {t, *std::move(packed)};
}

std::vector<char> ParityTest::Download(const Tensor& t) {
  std::vector<char> bytes(t.memory_->host.size());
  ops_->CopyOut(TensorView::Contiguous(t.memory_->device.data(), DType::kBF16,
                                       {static_cast<int64_t>(bytes.size() / 2)}),
                bytes.data());
  EXPECT_TRUE(ops_->Sync().ok());
  return bytes;
}

void ParityTest::ExpectSame(const Tensor& t, double tolerance, const std::string& what, double relative) {
  const std::vector<char> got = Download(t);
  const std::vector<char>& want = t.memory_->host;
  const size_t size = DTypeSize(t.host.dtype);
  int reported = 0;
  double worst = 0;
  for (size_t at = 0; at < want.size() && reported < 5; at += size) {
    const int64_t index =
        (static_cast<int64_t>(at) - static_cast<int64_t>(kGuard)) / static_cast<int64_t>(size);
    if (IsPoison(&want[at], size)) {
      if (IsPoison(&got[at], size)) continue;
      ADD_FAILURE() << what << ": element " << index << " was written and should not be";
      ++reported;
      continue;
    }
    double a, b;
    if (t.host.dtype == DType::kI32) {
      int32_t x, y;
      std::memcpy(&x, &got[at], size);
      std::memcpy(&y, &want[at], size);
      a = x;
      b = y;
    } else {
      TensorView x = TensorView::Contiguous(const_cast<char*>(&got[at]), t.host.dtype, {1});
      TensorView y = TensorView::Contiguous(const_cast<char*>(&want[at]), t.host.dtype, {1});
      a = reference::Get(x, 0);
      b = reference::Get(y, 0);
    }
    if (a == b) continue;  // infinities too
    worst = std::max(worst, std::fabs(a - b));
    if (const double limit = tolerance + relative * std::fabs(b); !(std::fabs(a - b) <= limit)) {
      ADD_FAILURE() << what << ": element " << index << " is " << a << ", want " << b << ", off by "
                    << std::fabs(a - b) << " > " << limit;
      ++reported;
    }
  }
  if (std::getenv("SLUICE_PARITY_VERBOSE") != nullptr)
    std::printf("%s %s: worst %.3g of %.3g\n", GetParam().name.c_str(), what.c_str(), worst, tolerance);
}

}  // namespace sluice
