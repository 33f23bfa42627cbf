// Speed of the kernels beside what the device can do: kernel_bench [isa] [threads] [only these: substring],
// or kernel_bench cuda [substring]; --json FILE anywhere keeps the figures. Percentages are of the read
// bandwidth or the arithmetic rate measured in the same process.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_device.h"
#include "tests/bench/bench_rows.h"

namespace sluice {
namespace {

// Names that fit, inputs, and a line of output per kernel.
class Bench {
 public:
  Bench(std::unique_ptr<BenchDevice> device, std::string only, std::string json)
      : device_(std::move(device)),
        only_(std::move(only)),
        rows_(std::move(json), {{"program", "kernel_bench"},
                                {"device", device_->backend().description()},
                                {"read_gb_s", device_->bandwidth() / 1e9},
                                {"product_gf_s", device_->flops() / 1e9}}) {
    uint32_t state = 1;
    for (float& x : noise_) x = (state = state * 1664525u + 1013904223u) / 4294967296.f - 0.5f;
    std::printf("%s: %s\n", device_->backend().description().c_str(), device_->ceilings().c_str());
  }

  Ops& ops() { return device_->ops(); }
  double cache_bytes() const { return static_cast<double>(device_->cache_bytes()); }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  Buffer Empty(size_t bytes) { return device_->backend().Allocate(bytes).value(); }
  Buffer Filled(size_t floats) {
    Buffer buffer = Empty(floats * sizeof(float));
    for (size_t at = 0; at < floats; at += noise_.size()) {
      const size_t n = std::min(noise_.size(), floats - at);
      ops().CopyIn(noise_.data(), TensorView::Contiguous(static_cast<float*>(buffer.data()) + at, DType::kF32,
                                                         {static_cast<int64_t>(n)}));
    }
    return buffer;
  }
  // bf16 values in [1, 2) of either sign.
  Buffer FilledBf16(size_t n) {
    std::vector<uint16_t> values(std::min<size_t>(n, 1 << 22));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          static_cast<uint16_t>(0x3f80 | (static_cast<int>(noise_[i % noise_.size()] * 65536) & 0x807f));
    Buffer buffer = Empty(n * 2);
    for (size_t at = 0; at < n; at += values.size())
      ops().CopyIn(values.data(),
                   TensorView::Contiguous(static_cast<uint16_t*>(buffer.data()) + at, DType::kBF16,
                                          {static_cast<int64_t>(std::min(values.size(), n - at))}));
    return buffer;
  }
  Buffer Ints(const std::vector<int32_t>& values) {
    Buffer buffer = Empty(values.size() * 4);
    ops().CopyIn(values.data(), buffer.View(DType::kI32, {static_cast<int64_t>(values.size())}));
    return buffer;
  }
  std::unique_ptr<Matrix> RandomMatrix(int rows, int cols) {
    size_t at = 0;
    return device_->backend()
        .PackMatrix(rows, cols,
                    [&](int64_t begin, int64_t end, float* out) {
                      for (int64_t left = (end - begin) * cols; left > 0;) {
                        const int64_t n = std::min<int64_t>(left, noise_.size() - at);
                        std::memcpy(out, noise_.data() + at, n * sizeof(float));
                        out += n;
                        left -= n;
                        at = (at + n) % noise_.size();
                      }
                      return absl::OkStatus();
                    })
        .value();
  }

  double Time(const std::function<void()>& body) { return device_->Time(body); }
  void PrintBytes(const std::string& name, double seconds, double bytes) {
    std::printf("%-46s %10.1f us %7.1f GB/s  %3.0f %%\n", name.c_str(), seconds * 1e6, bytes / seconds / 1e9,
                100 * bytes / seconds / device_->bandwidth());
    rows_.Add({{"name", name}, {"us", seconds * 1e6}, {"mb", bytes / 1e6}, {"gb_s", bytes / seconds / 1e9}});
  }
  void PrintFlops(const std::string& name, double seconds, double flops) {
    std::printf("%-46s %10.1f us %7.1f GF/s  %3.0f %%\n", name.c_str(), seconds * 1e6, flops / seconds / 1e9,
                100 * flops / seconds / device_->flops());
    rows_.Add({{"name", name}, {"us", seconds * 1e6}, {"gf_s", flops / seconds / 1e9}});
  }
  void PrintTime(const std::string& name, double seconds) {
    std::printf("%-46s %10.1f us\n", name.c_str(), seconds * 1e6);
    rows_.Add({{"name", name}, {"us", seconds * 1e6}});
  }

 private:
  const std::unique_ptr<BenchDevice> device_;
  const std::string only_;
  BenchRows rows_;
  std::vector<float> noise_ = std::vector<float>((1 << 20) + 7);
};

using Pairs = std::vector<std::pair<int, int>>;

std::string NameOf(const std::string& product, int n) { return product + " n " + std::to_string(n); }

// The counts that are asked for: a matrix with none is not made.
std::vector<int> Wanted(const Bench& b, const std::string& product, std::vector<int> counts) {
  std::erase_if(counts, [&](int n) { return !b.wants(NameOf(product, n)); });
  return counts;
}

// Enough copies of a matrix that none stays in the caches.
void BenchGemv(Bench& b, const Pairs& shapes, const std::vector<int>& counts) {
  for (auto [rows, cols] : shapes) {
    const std::string product = "gemv " + std::to_string(rows) + "x" + std::to_string(cols);
    const std::vector<int> wanted = Wanted(b, product, counts);
    if (wanted.empty()) continue;
    const double bytes = 2.0 * rows * cols;
    std::vector<std::unique_ptr<Matrix>> copies;
    for (double total = 0; total < b.cache_bytes(); total += bytes)
      copies.push_back(b.RandomMatrix(rows, cols));
    for (int n : wanted) {
      Buffer x = b.Filled(n * cols), out = b.Empty(4ul * n * rows);
      const double seconds = b.Time([&] {
        for (auto& w : copies)
          b.ops().MatMul(x.View(DType::kF32, {n, cols}), *w, TensorView(), false,
                         out.View(DType::kF32, {n, rows}));
      });
      b.PrintBytes(NameOf(product, n), seconds / copies.size(), bytes);
    }
  }
}

void BenchGemm(Bench& b, const Pairs& shapes, const std::vector<int>& counts) {
  for (auto [rows, cols] : shapes) {
    const std::string product = "gemm " + std::to_string(rows) + "x" + std::to_string(cols);
    const std::vector<int> wanted = Wanted(b, product, counts);
    if (wanted.empty()) continue;
    auto w = b.RandomMatrix(rows, cols);
    for (int n : wanted) {
      Buffer x = b.Filled(size_t{1} * n * cols), out = b.Empty(size_t{4} * n * rows);
      b.PrintFlops(NameOf(product, n), b.Time([&] {
        b.ops().MatMul(x.View(DType::kF32, {n, cols}), *w, TensorView(), false,
                       out.View(DType::kF32, {n, rows}));
      }),
                   2.0 * n * rows * cols);
    }
  }
}

struct PrefillShape {
  int q, kv, d, n, len;
};

void BenchAttention(Bench& b, const std::vector<PrefillShape>& shapes) {
  for (const PrefillShape& s : shapes) {
    const std::string heads = std::to_string(s.q) + "/" + std::to_string(s.kv) + "x" + std::to_string(s.d) +
                              " n " + std::to_string(s.n) + " of " + std::to_string(s.len);
    Buffer q = b.Filled(size_t{1} * s.n * s.q * s.d), out = b.Empty(size_t{4} * s.n * s.q * s.d);
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

void BenchSelect(Bench& b, int heads) {
  for (int n : {8192, 131072}) {
    Buffer scores = b.Filled(heads * n), out = b.Empty(4ul * heads * n), rows = b.Empty(4ul * heads * n);
    const TensorView view = scores.View(DType::kF32, {heads, n}), to = out.View(DType::kF32, {heads, n});
    const std::string size = " " + std::to_string(heads) + "x" + std::to_string(n);
    if (b.wants("pool max 63" + size))
      b.PrintTime("pool max 63" + size, b.Time([&] { b.ops().Pool(view, {Pooling::kMax, 63}, to); }));
    if (b.wants("pool fading" + size))
      b.PrintTime("pool fading" + size, b.Time([&] { b.ops().Pool(view, {Pooling::kFading}, to); }));
    if (b.wants("select_top" + size))
      b.PrintTime("select_top" + size, b.Time([&] {
        b.ops().SelectTop(view, n / 5, 32, rows.View(DType::kI32, {heads, n / 5 + 32}));
      }));
  }
}

// With the upload of the rules, as behind a decode step. Logits of noise are 1 wide: at this temperature
// about as many tokens have a weight that matters as in a model's row.
void BenchSample(Bench& b, int vocab, const std::vector<int>& batches) {
  SampleRule warm, top_k, top_p, both;
  warm.temperature = 0.02f;
  warm.uniform = 0.5;
  top_k = top_p = both = warm;
  top_k.top_k = both.top_k = 50;
  top_p.top_p = both.top_p = 0.95f;
  const std::pair<const char*, SampleRule> cases[] = {
      {"temperature", warm}, {"top-k 50", top_k}, {"top-p 0.95", top_p}, {"top-k 50 top-p 0.95", both}};
  for (int n : batches) {
    Buffer logits = b.Filled(size_t{1} * n * vocab), out = b.Empty(4ul * n);
    const TensorView view = logits.View(DType::kF32, {n, vocab}), to = out.View(DType::kI32, {n});
    const std::string size = " " + std::to_string(n) + "x" + std::to_string(vocab);
    if (b.wants("argmax" + size)) b.PrintTime("argmax" + size, b.Time([&] { b.ops().ArgMax(view, to); }));
    for (const auto& [name, rule] : cases) {
      const std::string line = std::string("sample ") + name + size;
      if (!b.wants(line)) continue;
      std::vector<SampleRule> rules(n, rule);
      for (int row = 0; row < n; ++row) rules[row].row = row;
      b.PrintTime(line, b.Time([&] { b.ops().Sample(view, rules, to); }));
    }
  }
}

// Dense over len rows; hybrid over the rows that stage one keeps of len at t = 512, with this page size, this
// many channels and tokens.
struct DecodeShape {
  int q, kv, d, batch, len, page, channels, tokens;
};

// A paged cache of one layer after another, each with memory and tables of its own.
struct LayerCaches {
  LayerCaches(Bench& b, const DecodeShape& s, int rows, double read_bytes)
      : shape(s),
        layers(std::max(4, static_cast<int>(std::ceil(b.cache_bytes() / 3 / read_bytes)))),
        pages_a_head((rows + 63) / 64),
        chunks_a_head((rows / s.page + 63) / 64 + 1),
        pages(b.FilledBf16(layers * layer_pages() * page_values())),
        chunks(b.FilledBf16(layers * layer_chunks() * page_values())),
        page_table(b.Ints(Tables(pages_a_head))),
        chunk_table(b.Ints(Tables(chunks_a_head))),
        kept_len(b.Ints(std::vector<int>(layers * s.batch * s.kv, rows))) {
    std::vector<int> slot_ids(s.batch), settings;
    std::iota(slot_ids.begin(), slot_ids.end(), 0);
    for (int i = 0; i < s.batch; ++i) settings.insert(settings.end(), {s.page, s.channels, s.tokens, 0});
    slots = b.Ints(slot_ids);
    hsa = b.Ints(settings);
  }
  size_t page_values() const { return size_t{2} * 64 * shape.d; }
  size_t layer_pages() const { return size_t{1} * shape.batch * shape.kv * pages_a_head; }
  size_t layer_chunks() const { return size_t{1} * shape.batch * shape.kv * chunks_a_head; }
  PagedKv Layer(int i) const {
    auto table = [&](const Buffer& buffer, int columns) {
      const TensorView all = buffer.View(DType::kI32, {layers, shape.batch, shape.kv, columns});
      return all.At(i);
    };
    PagedKv cache;
    cache.pages = static_cast<uint16_t*>(pages.data()) + i * layer_pages() * page_values();
    cache.chunks = static_cast<uint16_t*>(chunks.data()) + i * layer_chunks() * page_values();
    cache.n_kv_heads = shape.kv;
    cache.head_dim = shape.d;
    cache.slots = slots.View(DType::kI32, {shape.batch});
    cache.page_table = table(page_table, pages_a_head);
    cache.chunk_table = table(chunk_table, chunks_a_head);
    cache.kept_len = kept_len.View(DType::kI32, {layers, shape.batch, shape.kv}).At(i);
    cache.hsa = hsa.View(DType::kI32, {shape.batch, 4});
    return cache;
  }

  const DecodeShape shape;
  const int layers, pages_a_head, chunks_a_head;
  Buffer pages, chunks, page_table, chunk_table, kept_len, slots, hsa;

 private:
  std::vector<int> Tables(int columns) const {
    std::vector<int> ids(size_t{1} * layers * shape.batch * shape.kv * columns);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i % (ids.size() / layers));
    return ids;
  }
};

void BenchDecode(Bench& b, const std::vector<DecodeShape>& shapes) {
  for (const DecodeShape& s : shapes) {
    const std::string name = "decode " + std::to_string(s.q) + "/" + std::to_string(s.kv) + "x" +
                             std::to_string(s.d) + " batch " + std::to_string(s.batch) + " of " +
                             std::to_string(s.len);
    Buffer q = b.Filled(s.batch * s.q * s.d), out = b.Empty(4ul * s.batch * s.q * s.d);
    const TensorView q_view = q.View(DType::kF32, {s.batch, s.q, s.d}),
                     to = out.View(DType::kF32, {s.batch, s.q, s.d});
    auto bench_with = [&](const DecodeShape& shape, const std::string& line, int rows, double bytes,
                          auto op) {
      if (!b.wants(line)) return;
      const LayerCaches caches(b, shape, rows, bytes);
      const double seconds = b.Time([&] {
        for (int i = 0; i < caches.layers; ++i) op(caches.Layer(i));
      });
      b.PrintBytes(line, seconds / caches.layers, bytes);
    };
    auto bench = [&](const std::string& line, int rows, double bytes, auto op) {
      bench_with(s, line, rows, bytes, op);
    };
    bench(name + " dense", s.len, 4.0 * s.batch * s.kv * s.d * s.len,
          [&](const PagedKv& cache) { b.ops().PagedAttention(q_view, cache, to); });
    const double c = s.len / 512.0, r = std::min(0.2 + 0.06 * std::log2(c), 0.8);
    const int stage_one = static_cast<int>(s.len / std::pow(c, r));
    bench(name + " hybrid (" + std::to_string(stage_one) + ")", stage_one,
          s.batch * s.kv * (2.0 * s.channels * stage_one / s.page + 4.0 * s.tokens * s.d),
          [&](const PagedKv& cache) { b.ops().HsaAttention(q_view, cache, to); });

    // Of everything, kTokens rows a group or query head, and what they are chosen by.
    constexpr int kTokens = 1024, kPage = 16, kChannels = 16;
    auto selecting = [&](int page, int channels) {
      DecodeShape shape = s;
      shape.page = page;
      shape.channels = channels;
      shape.tokens = kTokens;
      return shape;
    };
    const double a_row = 4.0 * s.batch * s.d * std::min(kTokens, s.len),
                 keys = 2.0 * s.batch * s.kv * s.d * s.len;
    bench_with(selecting(kPage, s.d), name + " quest", s.len, keys * 2 / kPage + s.q * a_row,
               [&](const PagedKv& cache) { b.ops().QuestAttention(q_view, cache, to); });
    bench_with(selecting(1, kChannels), name + " sparq", s.len, keys * kChannels / s.d + s.kv * a_row,
               [&](const PagedKv& cache) { b.ops().SparqAttention(q_view, cache, false, to); });
    bench_with(selecting(kPage, s.d), name + " exact top-k", s.len, keys + s.q * a_row,
               [&](const PagedKv& cache) { b.ops().TopKAttention(q_view, cache, false, to); });
    bench_with(selecting(kPage, s.d), name + " exact top-k of groups", s.len, keys + s.kv * a_row,
               [&](const PagedKv& cache) { b.ops().TopKAttention(q_view, cache, true, to); });
  }
}

// Shapes of Qwen2.5-0.5B, SmolLM2-135M and needle-14m.
void BenchCpuShapes(Bench& b) {
  BenchGemv(b, {{1152, 896}, {9728, 896}, {896, 4864}, {3072, 576}, {151936, 896}}, {1, 2, 4});
  BenchGemm(b, {{1536, 576}, {4864, 896}, {9728, 896}, {896, 4864}, {1536, 384}, {4096, 4096}},
            {8, 16, 33, 64, 512});
  BenchAttention(b, {{6, 2, 64, 64, 1024},
                     {14, 2, 64, 512, 512},
                     {14, 2, 64, 2048, 2048},
                     {14, 2, 64, 512, 8192},
                     {9, 3, 64, 2048, 2048},
                     {6, 2, 64, 512, 8192},
                     {32, 8, 128, 512, 4096}});
  BenchSelect(b, 2);
  BenchSample(b, 49152, {1, 8});
  BenchDecode(b, {{14, 2, 64, 1, 8192, 3, 40, 256},
                  {14, 2, 64, 4, 8192, 3, 40, 256},
                  {14, 2, 64, 1, 32768, 3, 31, 256},
                  {6, 2, 64, 1, 8192, 3, 40, 256},
                  {32, 8, 128, 1, 8192, 3, 80, 256}});
}

// Shapes of Llama-3.1-8B, then of Qwen2.5-0.5B and SmolLM2-135M.
void BenchGpuShapes(Bench& b) {
  BenchGemv(b, {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}, {1, 2, 4, 8, 32});
  BenchGemv(b, {{1152, 896}, {9728, 896}}, {1, 8});
  BenchGemm(b, {{6144, 4096}, {28672, 4096}, {4096, 14336}}, {64, 256, 2048, 8192});
  BenchAttention(b, {{32, 8, 128, 1024, 1024},
                     {32, 8, 128, 8192, 8192},
                     {32, 8, 128, 32768, 32768},
                     {32, 8, 128, 4096, 131072},
                     {14, 2, 64, 32768, 32768},
                     {9, 3, 64, 8192, 8192}});
  BenchSelect(b, 8);
  BenchSample(b, 128256, {1, 8, 64});
  BenchDecode(b, {{32, 8, 128, 1, 1024, 3, 80, 256},
                  {32, 8, 128, 1, 8192, 3, 81, 256},
                  {32, 8, 128, 1, 16384, 3, 68, 256},
                  {32, 8, 128, 1, 32768, 3, 62, 256},
                  {32, 8, 128, 1, 131072, 3, 65, 256},
                  {32, 8, 128, 8, 8192, 3, 81, 256},
                  {32, 8, 128, 8, 32768, 3, 62, 256},
                  {32, 8, 128, 32, 8192, 3, 81, 256},
                  {32, 8, 128, 32, 32768, 3, 62, 256},
                  {32, 8, 128, 169, 32768, 3, 62, 256},
                  {14, 2, 64, 1, 32768, 3, 31, 256},
                  {14, 2, 64, 8, 8192, 3, 40, 256}});
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  std::vector<std::string> args(argv + 1, argv + argc);
  std::string json;
  if (const auto flag = std::find(args.begin(), args.end(), "--json"); args.end() - flag > 1) {
    json = flag[1];
    args.erase(flag, flag + 2);
  }
  args.resize(3);
  if (args[0] == "cuda") {
    auto device = NewCudaBench();
    if (!device.ok()) {
      std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
      return 1;
    }
    Bench bench(*std::move(device), args[1], json);
    BenchGpuShapes(bench);
    return 0;
  }
  auto isa = args[0].empty() ? BestCpuIsa() : ParseCpuIsa(args[0]);
  const int threads = args[1].empty() ? 2 : std::atoi(args[1].c_str());
  if (!isa.ok() || !CpuSupports(*isa) || threads < 1) {
    std::fprintf(
        stderr,
        "usage: kernel_bench cuda [substring] [--json FILE]\n"
        "       kernel_bench [avx2|avx512|avx512_bf16, if this machine has it] [threads] [substring]\n");
    return 1;
  }
  Bench bench(NewCpuBench(*isa, threads), args[2], json);
  BenchCpuShapes(bench);
}
