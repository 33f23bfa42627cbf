// Speed of the CPU kernels beside what the machine can do: kernel_bench [isa] [threads] [only these:
// substring]. Every line is the best of several runs; percentages are of the read bandwidth or the f32
// multiply-add rate measured in the same process.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/bench/ceilings.h"

namespace sluice {
namespace {

class Bench {
 public:
  Bench(CpuIsa isa, int threads, std::string only) : threads_(threads), only_(std::move(only)) {
    CpuOptions options;
    options.isa = isa;
    options.threads = threads;
    backend_ = NewCpuBackend(options).value();
    ops_ = backend_->NewOps();
    bandwidth_ = MeasureReadBandwidth(threads);
    fma_rate_ = MeasureFmaRate(threads, isa != CpuIsa::kAvx2);
    std::printf("%s: read %.1f GB/s, f32 multiply-add %.1f GF/s\n", backend_->description().c_str(),
                bandwidth_ / 1e9, fma_rate_ / 1e9);
  }

  Ops& ops() { return *ops_; }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  Buffer Filled(size_t floats) {
    Buffer buffer = backend_->Allocate(floats * sizeof(float)).value();
    float* x = static_cast<float*>(buffer.data());
    uint32_t state = 1;
    for (size_t i = 0; i < floats; ++i) x[i] = (state = state * 1664525u + 1013904223u) / 4294967296.f - 0.5f;
    return buffer;
  }
  // bf16 values in [1, 2) or of either sign.
  Buffer FilledBf16(size_t n) {
    Buffer buffer = backend_->Allocate(n * 2).value();
    uint16_t* x = static_cast<uint16_t*>(buffer.data());
    uint32_t state = 1;
    for (size_t i = 0; i < n; ++i) {
      state = state * 1664525u + 1013904223u;
      x[i] = static_cast<uint16_t>(0x3f80 | (state >> 16 & 0x807f));
    }
    return buffer;
  }
  std::unique_ptr<Matrix> RandomMatrix(int rows, int cols) {
    uint32_t state = 1;
    return backend_
        ->PackMatrix(rows, cols,
                     [&](int64_t begin, int64_t end, float* out) {
                       for (int64_t i = 0; i < (end - begin) * cols; ++i)
                         out[i] = (state = state * 1664525u + 1013904223u) / 4294967296.f - 0.5f;
                       return absl::OkStatus();
                     })
        .value();
  }

  // The shortest of many runs of body, within half a second or so.
  double Time(const std::function<void()>& body) {
    body();
    double best = 1e30, begin = BenchSeconds(threads_);
    for (int i = 0; i < 3 || (BenchSeconds(threads_) - begin < 0.7 && i < 2000); ++i) {
      const double start = BenchSeconds(threads_);
      body();
      best = std::min(best, BenchSeconds(threads_) - start);
    }
    return best;
  }
  void PrintBytes(const std::string& name, double seconds, double bytes) {
    std::printf("%-46s %10.1f us %7.1f GB/s  %3.0f %%\n", name.c_str(), seconds * 1e6, bytes / seconds / 1e9,
                100 * bytes / seconds / bandwidth_);
  }
  void PrintFlops(const std::string& name, double seconds, double flops) {
    std::printf("%-46s %10.1f us %7.1f GF/s  %3.0f %%\n", name.c_str(), seconds * 1e6, flops / seconds / 1e9,
                100 * flops / seconds / fma_rate_);
  }
  void PrintTime(const std::string& name, double seconds) {
    std::printf("%-46s %10.1f us\n", name.c_str(), seconds * 1e6);
  }

 private:
  const int threads_;
  const std::string only_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ops> ops_;
  double bandwidth_, fma_rate_;
};

// Enough copies of a matrix that none stays in the caches.
void BenchGemv(Bench& b) {
  for (auto [rows, cols] : {std::pair{1152, 896}, {9728, 896}, {896, 4864}, {3072, 576}, {151936, 896}}) {
    const double bytes = 2.0 * rows * cols;
    std::vector<std::unique_ptr<Matrix>> copies;
    for (double total = 0; total < 200e6; total += bytes) copies.push_back(b.RandomMatrix(rows, cols));
    for (int n : {1, 2, 4}) {
      const std::string name =
          "gemv " + std::to_string(rows) + "x" + std::to_string(cols) + " n " + std::to_string(n);
      if (!b.wants(name)) continue;
      Buffer x = b.Filled(n * cols), out = b.Filled(size_t{1} * n * rows);
      const double seconds = b.Time([&] {
        for (auto& w : copies)
          b.ops().MatMul(x.View(DType::kF32, {n, cols}), *w, TensorView(), false,
                         out.View(DType::kF32, {n, rows}));
      });
      b.PrintBytes(name, seconds / copies.size(), bytes);
    }
  }
}

void BenchGemm(Bench& b) {
  for (auto [rows, cols] :
       {std::pair{1536, 576}, {4864, 896}, {9728, 896}, {896, 4864}, {1536, 384}, {4096, 4096}}) {
    auto w = b.RandomMatrix(rows, cols);
    for (int n : {8, 16, 33, 64, 512}) {
      const std::string name =
          "gemm " + std::to_string(rows) + "x" + std::to_string(cols) + " n " + std::to_string(n);
      if (!b.wants(name)) continue;
      Buffer x = b.Filled(n * cols), out = b.Filled(n * rows);
      b.PrintFlops(name, b.Time([&] {
        b.ops().MatMul(x.View(DType::kF32, {n, cols}), *w, TensorView(), false,
                       out.View(DType::kF32, {n, rows}));
      }),
                   2.0 * n * rows * cols);
    }
  }
}

void BenchAttention(Bench& b) {
  struct Shape {
    int q, kv, d, n, len;
  };
  for (Shape s : {Shape{6, 2, 64, 64, 1024},
                  {14, 2, 64, 512, 512},
                  {14, 2, 64, 2048, 2048},
                  {14, 2, 64, 512, 8192},
                  {9, 3, 64, 2048, 2048},
                  {6, 2, 64, 512, 8192},
                  {32, 8, 128, 512, 4096}}) {
    const std::string heads = std::to_string(s.q) + "/" + std::to_string(s.kv) + "x" + std::to_string(s.d) +
                              " n " + std::to_string(s.n) + " of " + std::to_string(s.len);
    Buffer q = b.Filled(size_t{1} * s.n * s.q * s.d), out = b.Filled(size_t{1} * s.n * s.q * s.d);
    Buffer k = b.FilledBf16(size_t{1} * s.kv * s.len * s.d), v = b.FilledBf16(size_t{1} * s.kv * s.len * s.d);
    const int window = 32;
    Buffer lse = b.Filled(s.q * window), scores = b.Filled(s.kv * s.len);
    AttentionArgs a;
    a.q = q.View(DType::kF32, {s.n, s.q, s.d});
    a.k = k.View(DType::kBF16, {s.kv, s.len, s.d});
    a.v = v.View(DType::kBF16, {s.kv, s.len, s.d});
    a.out = out.View(DType::kF32, {s.n, s.q, s.d});
    a.lse = lse.View(DType::kF32, {s.q, window});
    if (b.wants("attention " + heads)) {
      const double pairs = s.n * (s.len - s.n / 2.0);
      b.PrintFlops("attention " + heads, b.Time([&] {
        b.ops().Attention({&a, 1});
      }),
                   4.0 * s.q * s.d * pairs);
    }
    if (b.wants("window_scores " + heads)) {
      WindowScoresArgs w;
      w.q = a.q.Slice(0, s.n - window, s.n);
      w.k = a.k;
      w.lse = a.lse;
      w.scores = scores.View(DType::kF32, {s.kv, s.len - window});
      b.PrintFlops("window_scores " + heads, b.Time([&] { b.ops().WindowScores(w); }),
                   2.0 * s.q * s.d * window * s.len);
    }
  }
}

void BenchSelect(Bench& b) {
  for (int n : {8192, 131072}) {
    Buffer scores = b.Filled(2 * n), out = b.Filled(2 * n), rows = b.Filled(2 * n);
    const TensorView view = scores.View(DType::kF32, {2, n}), to = out.View(DType::kF32, {2, n});
    const std::string size = " 2x" + std::to_string(n);
    if (b.wants("pool max 63" + size))
      b.PrintTime("pool max 63" + size, b.Time([&] { b.ops().Pool(view, {Pooling::kMax, 63}, to); }));
    if (b.wants("pool fading" + size))
      b.PrintTime("pool fading" + size, b.Time([&] { b.ops().Pool(view, {Pooling::kFading}, to); }));
    if (b.wants("select_top" + size))
      b.PrintTime("select_top" + size, b.Time([&] {
        b.ops().SelectTop(view, n / 5, 32, rows.View(DType::kI32, {2, n / 5 + 32}));
      }));
  }
}

void BenchDecode(Bench& b) {
  struct Shape {
    int q, kv, d, batch, len, page, channels, tokens;
  };
  // Dense over len rows; hybrid over the rows that stage one keeps of len at t = 512.
  for (Shape s : {Shape{14, 2, 64, 1, 8192, 3, 40, 256},
                  {14, 2, 64, 4, 8192, 3, 40, 256},
                  {14, 2, 64, 1, 32768, 3, 31, 256},
                  {6, 2, 64, 1, 8192, 3, 40, 256},
                  {32, 8, 128, 1, 8192, 3, 80, 256}}) {
    const std::string shape = " " + std::to_string(s.q) + "/" + std::to_string(s.kv) + "x" +
                              std::to_string(s.d) + " batch " + std::to_string(s.batch) + " of " +
                              std::to_string(s.len);
    if (!b.wants("decode" + shape)) continue;
    const int max_pages = (s.len + 63) / 64, n_pages = s.batch * s.kv * max_pages;
    constexpr int kCopies = 4;  // layers, so that nothing stays in the caches
    const size_t page_values = size_t{2} * 64 * s.d;
    Buffer pages = b.FilledBf16(kCopies * n_pages * page_values),
           chunks = b.FilledBf16(kCopies * n_pages * page_values);
    std::vector<int> table(n_pages), slots(s.batch), kept(s.batch * s.kv, s.len), hsa;
    std::iota(table.begin(), table.end(), 0);
    std::iota(slots.begin(), slots.end(), 0);
    for (int i = 0; i < s.batch; ++i) hsa.insert(hsa.end(), {s.page, s.channels, s.tokens});
    Buffer q = b.Filled(s.batch * s.q * s.d), out = b.Filled(s.batch * s.q * s.d);
    PagedKv cache;
    cache.n_kv_heads = s.kv;
    cache.head_dim = s.d;
    cache.slots = TensorView::Contiguous(slots.data(), DType::kI32, {s.batch});
    cache.page_table = TensorView::Contiguous(table.data(), DType::kI32, {s.batch, s.kv, max_pages});
    cache.chunk_table = cache.page_table;
    cache.kept_len = TensorView::Contiguous(kept.data(), DType::kI32, {s.batch, s.kv});
    cache.hsa = TensorView::Contiguous(hsa.data(), DType::kI32, {s.batch, 3});
    const TensorView q_view = q.View(DType::kF32, {s.batch, s.q, s.d}),
                     to = out.View(DType::kF32, {s.batch, s.q, s.d});
    auto layers = [&](auto op) {
      return b.Time([&] {
        for (int i = 0; i < kCopies; ++i) {
          cache.pages = static_cast<uint16_t*>(pages.data()) + i * n_pages * page_values;
          cache.chunks = static_cast<uint16_t*>(chunks.data()) + i * n_pages * page_values;
          op();
        }
      }) / kCopies;
    };
    const double dense = layers([&] { b.ops().PagedAttention(q_view, cache, to); });
    b.PrintBytes("decode" + shape + " dense", dense, 4.0 * s.batch * s.kv * s.d * s.len);
    const double c = s.len / 512.0, r = std::min(0.2 + 0.06 * std::log2(c), 0.8);
    const int stage_one = static_cast<int>(s.len / std::pow(c, r));
    std::fill(kept.begin(), kept.end(), stage_one);
    const double sparse = layers([&] { b.ops().HsaAttention(q_view, cache, to); });
    b.PrintBytes("decode" + shape + " hybrid (" + std::to_string(stage_one) + ")", sparse,
                 s.batch * s.kv * (2.0 * s.channels * stage_one / s.page + 4.0 * s.tokens * s.d));
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  auto isa = argc > 1 ? ParseCpuIsa(argv[1]) : BestCpuIsa();
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  if (!isa.ok() || !CpuSupports(*isa) || threads < 1) {
    std::fprintf(
        stderr,
        "usage: kernel_bench [avx2|avx512|avx512_bf16, if this machine has it] [threads] [substring]\n");
    return 1;
  }
  Bench bench(*isa, threads, argc > 3 ? argv[3] : "");
  BenchGemv(bench);
  BenchGemm(bench);
  BenchAttention(bench);
  BenchSelect(bench);
  BenchDecode(bench);
}
