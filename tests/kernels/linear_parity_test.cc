// Parity of matmul and the row ops.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/bf16.h"
#include "tests/kernels/parity.h"

namespace sluice {
namespace {

using LinearParity = ParityTest;
INSTANTIATE_TEST_SUITE_P(Backends, LinearParity, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(LinearParity, CopyMovesStridedRows) {
  Tensor from = Random(DType::kF32, {5, 7, 24}), to = Poisoned(DType::kF32, {5, 9, 32});
  Tensor part = to.Slice(1, 1, 8).Slice(2, 4, 28);
  ops().Copy(from.device, part.device);
  for (int i = 0; i < 5; ++i)
    for (int j = 0; j < 7; ++j)
      for (int k = 0; k < 24; ++k) reference::Set(part.host, reference::Get(from.host, i, j, k), i, j, k);
  ExpectSame(to, 0);

  Tensor row = Random(DType::kBF16, {48}), all = Poisoned(DType::kBF16, {3, 48});
  TensorView repeated = row.device;
  repeated.rank = 2;
  repeated.shape = {3, 48};
  repeated.stride = {0, 1};
  ops().Copy(repeated, all.device);
  for (int i = 0; i < 3; ++i) std::memcpy(all.host.as<uint16_t>() + i * 48, row.host.data, 96);
  ExpectSame(all, 0);
}

TEST_P(LinearParity, CopyEachMovesBlocksOfOneShape) {
  for (int d : {32, 20}) {  // whole pieces of 16 bytes, and not
    constexpr int kBlocks = 150, kRows = 4;
    Tensor blocks = Random(DType::kBF16, {kBlocks, 3 * kRows, d}),
           all = Poisoned(DType::kBF16, {3, kBlocks * kRows, d});
    std::vector<CopyArgs> copies;
    for (int i = 0; i < kBlocks; ++i) {
      TensorView block = TensorView::Contiguous(blocks.At(i).device.data, DType::kBF16, {3, kRows, d});
      copies.push_back({block, all.Slice(1, i * kRows, (i + 1) * kRows).device});
      for (int h = 0; h < 3; ++h)
        std::memcpy(all.host.as<uint16_t>() + (h * kBlocks + i) * kRows * d,
                    blocks.host.as<uint16_t>() + (i * 3 + h) * kRows * d, kRows * d * sizeof(uint16_t));
    }
    ops().CopyEach(copies);
    ExpectSame(all, 0, absl::StrCat("d ", d));
  }
}

// A queue may be built on what an earlier one left; two at a time share nothing.
TEST_P(LinearParity, QueuesComeAndGo) {
  auto [w, matrix] = RandomMatrix(64, 96);
  Tensor x = Random(DType::kF32, {20, 96});
  ASSERT_TRUE(ops().Sync().ok());
  for (int round = 0; round < 3; ++round) {
    std::unique_ptr<Ops> a = backend().NewOps(), b = backend().NewOps();
    Tensor of_a = Poisoned(DType::kF32, {20, 64}), of_b = Poisoned(DType::kF32, {20, 64});
    ASSERT_TRUE(ops().Sync().ok());
    a->MatMul(x.device, *matrix, TensorView(), false, of_a.device);
    b->MatMul(x.device, *matrix, TensorView(), false, of_b.device);
    std::vector<float> dropped(20 * 64);
    b->CopyOut(of_b.device, dropped.data());
    ASSERT_TRUE(a->Sync().ok());
    b = nullptr;  // waits for its work
    EXPECT_EQ(Download(of_a), Download(of_b));
  }
}

// Products for most of a second: the thread that waits for them is seen to wait.
TEST_P(LinearParity, AWaitForTheDeviceIsSeen) {
  EXPECT_EQ(backend().waiting(), absl::ZeroDuration());
  if (backend().description().rfind("cpu", 0) == 0) return;  // its ops run inside their calls
  auto [w, packed] = RandomMatrix(4096, 4096);
  const Tensor x = Random(DType::kF32, {4096, 4096}), out = Poisoned(DType::kF32, {4096, 4096});
  for (int i = 0; i < 3000; ++i) ops().MatMul(x.device, *packed, {}, false, out.device);
  std::atomic<bool> over{false};
  absl::Duration longest;
  std::thread watch([&] {
    while (!over) longest = std::max(longest, backend().waiting());
  });
  EXPECT_TRUE(ops().Sync().ok());
  over = true;
  watch.join();
  EXPECT_GT(longest, absl::Milliseconds(50));
  EXPECT_EQ(backend().waiting(), absl::ZeroDuration());
}

TEST_P(LinearParity, EmbedReadsRowsOfThePackedMatrix) {
  for (int cols : {64, 576, 33}) {
    auto [w, matrix] = RandomMatrix(130, cols);
    const std::vector<int> ids = {0, 129, 5, 16, 15, 5, 64, 128};
    Tensor rows = Ints({8}, ids), out = Poisoned(DType::kF32, {8, cols});
    ops().Embed(*matrix, rows.device, out.device);
    for (int i = 0; i < 8; ++i)
      for (int c = 0; c < cols; ++c) reference::Set(out.host, reference::Get(w.host, ids[i], c), i, c);
    ExpectSame(out, 0, absl::StrCat("cols ", cols));
  }
}

TEST_P(LinearParity, MatMul) {
  struct Shape {
    int rows, cols;
  };
  // Odd sizes, less than a panel, panels that do not fill a vector group, several blocks of k.
  for (Shape s :
       {Shape{16, 16}, {1, 2}, {7, 33}, {40, 64}, {200, 576}, {1152, 384}, {96, 1025}, {130, 896}}) {
    auto [w, matrix] = RandomMatrix(s.rows, s.cols);
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 250}) {
      if (n == 250 && s.rows > 200) continue;
      Tensor x = Random(DType::kF32, {n, s.cols}), bias = Random(DType::kF32, {s.rows});
      Tensor out = Poisoned(DType::kF32, {n, s.rows}), sum = Random(DType::kF32, {n, s.rows});
      ops().MatMul(x.device, *matrix, TensorView(), false, out.device);
      ops().MatMul(x.device, *matrix, bias.device, true, sum.device);
      if (GetParam().rounds_activations) RoundOnHost(x);
      reference::MatMul(x.host, w.host, TensorView(), false, out.host);
      reference::MatMul(x.host, w.host, bias.host, true, sum.host);
      const std::string what = absl::StrCat(s.rows, "x", s.cols, " n ", n);
      ExpectSame(out, SumTolerance(s.cols, 1), what);
      ExpectSame(sum, SumTolerance(s.cols + 2, 1), what);
    }
  }
}

// Queues of two threads whose products take different kernels' resources: neither may change the other's.
TEST_P(LinearParity, QueuesOfTwoThreadsDoNotDisturbEachOther) {
  struct Queue {
    Tensor x, out;
    std::unique_ptr<Matrix> matrix;
    std::unique_ptr<Ops> ops;
    absl::Status status;
  };
  std::vector<Queue> queues(2);
  for (int i = 0; i < 2; ++i) {
    Queue& queue = queues[i];
    const int rows = 64, cols = i == 0 ? 256 : 4096, n = i == 0 ? 1 : 4;
    auto [w, matrix] = RandomMatrix(rows, cols);
    queue.matrix = std::move(matrix);
    queue.x = Random(DType::kF32, {n, cols});
    queue.out = Poisoned(DType::kF32, {n, rows});
    queue.ops = backend().NewOps();
    if (GetParam().rounds_activations) RoundOnHost(queue.x);
    reference::MatMul(queue.x.host, w.host, TensorView(), false, queue.out.host);
  }
  auto run = [](Queue* queue) {
    for (int i = 0; i < 500; ++i)
      queue->ops->MatMul(queue->x.device, *queue->matrix, TensorView(), false, queue->out.device);
    queue->status = queue->ops->Sync();
  };
  std::thread first(run, &queues[0]);
  run(&queues[1]);
  first.join();
  for (Queue& queue : queues) {
    EXPECT_TRUE(queue.status.ok()) << queue.status;
    ExpectSame(queue.out, SumTolerance(queue.x.host.shape[1], 1));
  }
}

// The widths of Llama-3.1-8B, Qwen2.5-0.5B, SmolLM2-135M and needle-14m, as inputs and as outputs.
TEST_P(LinearParity, MatMulOfModels) {
  struct Shape {
    int rows, cols;
  };
  for (Shape s : {Shape{64, 4096},
                  {64, 14336},
                  {6144, 64},
                  {28672, 64},
                  {64, 896},
                  {64, 4864},
                  {1152, 896},
                  {9728, 64},
                  {64, 576},
                  {64, 1536},
                  {960, 576},
                  {1536, 384}}) {
    auto [w, matrix] = RandomMatrix(s.rows, s.cols);
    for (int n : {1, 4, 8, 9, 33}) {
      Tensor x = Random(DType::kF32, {n, s.cols}), bias = Random(DType::kF32, {s.rows});
      Tensor sum = Random(DType::kF32, {n, s.rows});
      ops().MatMul(x.device, *matrix, bias.device, true, sum.device);
      if (GetParam().rounds_activations) RoundOnHost(x);
      reference::MatMul(x.host, w.host, bias.host, true, sum.host);
      ExpectSame(sum, SumTolerance(s.cols + 2, 1), absl::StrCat(s.rows, "x", s.cols, " n ", n));
    }
  }
}

TEST_P(LinearParity, MatMulReadsAndWritesInsideWiderRows) {
  auto [w, matrix] = RandomMatrix(48, 64);
  for (int n : {1, 5, 40}) {
    Tensor wide = Random(DType::kF32, {n, 200}), out = Poisoned(DType::kF32, {n, 100});
    Tensor x = wide.Slice(1, 70, 134), to = out.Slice(1, 3, 51);
    ops().MatMul(x.device, *matrix, TensorView(), false, to.device);
    if (GetParam().rounds_activations) RoundOnHost(x);
    reference::MatMul(x.host, w.host, TensorView(), false, to.host);
    ExpectSame(out, SumTolerance(64, 1));
  }
}

// Batch of N = N singles, bit for bit up to equal_rows, within rounding beyond.
TEST_P(LinearParity, MatMulRowsDoNotDependOnTheirNumber) {
  for (int cols : {896, 2050}) {
    auto [w, matrix] = RandomMatrix(176, cols);
    constexpr int kRows = 263;
    Tensor x = Random(DType::kF32, {kRows, cols}), bias = Random(DType::kF32, {176});
    Tensor single = Random(DType::kF32, {kRows, 176});
    std::vector<char> start = Download(single);
    for (int i = 0; i < kRows; ++i)
      ops().MatMul(x.Slice(0, i, i + 1).device, *matrix, bias.device, true, single.Slice(0, i, i + 1).device);
    for (int n : {2, 3, 4, 5, 6, 8, 9, 13, 33, kRows}) {
      Tensor out = Poisoned(DType::kF32, {kRows, 176});
      std::memcpy(out.host.data, single.host.data, kRows * 176 * sizeof(float));
      Upload(out);
      for (int i = 0; i < kRows; i += n) {
        const int end = std::min(i + n, kRows);
        ops().MatMul(x.Slice(0, i, end).device, *matrix, bias.device, true, out.Slice(0, i, end).device);
      }
      if (n <= GetParam().equal_rows) {
        EXPECT_EQ(Download(out), Download(single)) << "n " << n << " cols " << cols;
        continue;
      }
      const std::vector<char> want = Download(single);
      std::memcpy(out.host.data, want.data() + 256, kRows * 176 * sizeof(float));
      ExpectSame(out, 2 * SumTolerance(cols + 2, 1), absl::StrCat("n ", n, " cols ", cols));
    }
  }
}

// What a product rounds anyway may come rounded: the same bits.
TEST_P(LinearParity, MatMulReadsRoundedRows) {
  if (backend().product_input() != DType::kBF16) GTEST_SKIP() << "products read f32";
  for (int cols : {64, 896, 4096}) {
    auto [w, matrix] = RandomMatrix(200, cols);
    for (int n : {1, 2, 8, 9, 16, 17, 40, 300}) {
      Tensor x = Random(DType::kF32, {n, cols}), rounded = Poisoned(DType::kBF16, {n, cols});
      for (int i = 0; i < n * cols; ++i) rounded.host.as<uint16_t>()[i] = RoundToBf16(x.host.as<float>()[i]);
      Upload(rounded);
      Tensor want = Poisoned(DType::kF32, {n, 200}), got = Poisoned(DType::kF32, {n, 200});
      ops().MatMul(x.device, *matrix, TensorView(), false, want.device);
      ops().MatMul(rounded.device, *matrix, TensorView(), false, got.device);
      EXPECT_EQ(Download(got), Download(want)) << "n " << n << " cols " << cols;
    }
  }
}

TEST_P(LinearParity, NormAndGateWriteWhatProductsRead) {
  const DType dtype = backend().product_input();
  const double unit = dtype == DType::kBF16 ? std::ldexp(1, -8) : 0;  // half a unit of 8 bits
  for (int c : {64, 576, 4096, 14336}) {
    for (int n : {1, 3, 33}) {
      Tensor x = Random(DType::kF32, {n, c}, 3), weight = Random(DType::kF32, {c});
      Tensor normed = Poisoned(dtype, {n, c});
      ops().RmsNorm(x.device, weight.device, 1e-5f, normed.device);
      reference::RmsNorm(x.host, weight.host, 1e-5f, normed.host);
      ExpectSame(normed, ElementTolerance(4) + SumTolerance(c, 1.0 / c), absl::StrCat("norm, c ", c),
                 2 * unit);
      Tensor gate_up = Random(DType::kF32, {n, 2 * c}, 4), inner = Poisoned(dtype, {n, c});
      ops().SwiGlu(gate_up.device, inner.device);
      reference::SwiGlu(gate_up.host, inner.host);
      ExpectSame(inner, ElementTolerance(1000), absl::StrCat("gate, c ", c), 2 * unit);
    }
  }
}

TEST_P(LinearParity, RmsNorm) {
  for (int c : {64, 384, 576, 896, 4096, 37}) {
    for (int n : {1, 3, 33}) {
      Tensor x = Random(DType::kF32, {n, c}, 3), weight = Random(DType::kF32, {c});
      Tensor out = Poisoned(DType::kF32, {n, c});
      ops().RmsNorm(x.device, weight.device, 1e-5f, out.device);
      reference::RmsNorm(x.host, weight.host, 1e-5f, out.host);
      ExpectSame(out, ElementTolerance(4) + SumTolerance(c, 1.0 / c), absl::StrCat("c ", c));
    }
  }
  // Heads inside a fused row, in place.
  Tensor qkv = Random(DType::kF32, {5, 640}), weight = Random(DType::kF32, {64});
  Tensor q = qkv.Slice(1, 64, 512).Heads(7);
  ops().RmsNorm(q.device, weight.device, 1e-6f, q.device);
  reference::RmsNorm(q.host, weight.host, 1e-6f, q.host);
  ExpectSame(qkv, ElementTolerance(8), "heads");
}

// [context, d]: cosines, then sines.
std::vector<float> RotationTable(int context, int d) {
  std::vector<float> table(context * d);
  for (int p = 0; p < context; ++p) {
    for (int i = 0; i < d / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / d);
      table[p * d + i] = static_cast<float>(std::cos(angle));
      table[p * d + d / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

TEST_P(LinearParity, Rope) {
  for (int d : {64, 128, 16}) {
    Tensor cos_sin = Floats({300, d}, RotationTable(300, d)), positions = Ints({4}, {0, 299, 7, 150});
    Tensor rows = Random(DType::kF32, {4, 9 * d});
    Tensor x = rows.Slice(1, 2 * d, 5 * d).Heads(3);
    ops().Rope(x.device, positions.device, cos_sin.device, TensorView());
    reference::Rope(x.host, positions.host, cos_sin.host, TensorView());
    ExpectSame(rows, ElementTolerance(4), absl::StrCat("d ", d));
    Tensor shift = Random(DType::kF32, {3, d});
    ops().Rope(x.device, positions.device, cos_sin.device, shift.device);
    reference::Rope(x.host, positions.host, cos_sin.host, shift.host);
    ExpectSame(rows, ElementTolerance(8), absl::StrCat("shifted, d ", d));
  }
}

// x as products read it, and the same values on the host.
TEST_P(LinearParity, RotatedMatMul) {
  for (int cols : {64, 896, 4096}) {
    for (int n : {1, 3, 7, 8, 20}) {
      Tensor x = Random(DType::kF32, {n, cols});
      if (GetParam().rounds_activations) RoundOnHost(x);
      Upload(x);
      for (int d : {64, 128, 24}) {  // five heads are rotated, two are not
        auto [w, matrix] = RandomMatrix(7 * d, cols);
        Tensor bias = Random(DType::kF32, {7 * d}), shift = Random(DType::kF32, {5, d});
        std::vector<int> places(n);
        for (int i = 0; i < n; ++i) places[i] = i * 13;
        Tensor positions = Ints({n}, places), cos_sin = Floats({300, d}, RotationTable(300, d));
        for (const TensorView* less : {&shift.device, static_cast<TensorView*>(nullptr)}) {
          Tensor out = Poisoned(DType::kF32, {n, 7 * d}), heads = out.Slice(1, 0, 5 * d).Heads(5);
          ops().RotatedMatMul(x.device, *matrix, bias.device, out.device, heads.device, positions.device,
                              cos_sin.device, less != nullptr ? *less : TensorView());
          reference::MatMul(x.host, w.host, bias.host, false, out.host);
          reference::Rope(heads.host, positions.host, cos_sin.host,
                          less != nullptr ? shift.host : TensorView());
          ExpectSame(out, 2 * SumTolerance(cols + 2, 1),
                     absl::StrCat("heads of ", d, ", cols ", cols, " n ", n));
        }
      }
    }
  }
}

TEST_P(LinearParity, GatedMatMul) {
  const DType dtype = backend().product_input();
  for (int cols : {64, 896, 4096}) {
    for (int n : {1, 3, 7, 8, 20}) {
      // Gates and values of size 1: up to 5 in a test.
      Tensor x = Random(DType::kF32, {n, cols}, 1 / std::sqrt(static_cast<float>(cols)));
      if (GetParam().rounds_activations) RoundOnHost(x);
      Upload(x);
      for (int c : {40, 36, 384}) {
        auto [w, matrix] = RandomMatrix(2 * c, cols);
        Tensor gate_up = Poisoned(DType::kF32, {n, 2 * c}), out = Poisoned(dtype, {n, c});
        ops().GatedMatMul(x.device, *matrix, gate_up.device, out.device);
        reference::MatMul(x.host, w.host, TensorView(), false, gate_up.host);
        reference::SwiGlu(gate_up.host, out.host);
        ExpectSame(out, 11 * SumTolerance(cols, 1 / std::sqrt(cols)) + ElementTolerance(30),
                   absl::StrCat("c ", c, ", cols ", cols, " n ", n),
                   dtype == DType::kBF16 ? std::ldexp(1, -7) : 0);
      }
    }
  }
}

TEST_P(LinearParity, SwiGlu) {
  for (int c : {1536, 14336, 37}) {
    Tensor gate_up = Random(DType::kF32, {3, 2 * c}, 4), out = Poisoned(DType::kF32, {3, c});
    const float far[] = {-200, -89, -87, 87, 89, 200, 0, -0.f};
    for (int i = 0; i < 8; ++i) gate_up.host.as<float>()[i] = far[i];
    Upload(gate_up);
    ops().SwiGlu(gate_up.device, out.device);
    reference::SwiGlu(gate_up.host, out.host);
    ExpectSame(out, ElementTolerance(1000), absl::StrCat("c ", c));
  }
}

TEST_P(LinearParity, StoreKvRoundsToNearestEven) {
  Tensor k = Random(DType::kF32, {11, 3 * 32}), v = Random(DType::kF32, {11, 3 * 32});
  // Halfway cases, one past them, the largest finite f32, denormals.
  const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f817fff,
                           0x7f7fffff, 0xff7f7fff, 0x00008000, 0x80018000};
  std::memcpy(k.host.data, bits, sizeof(bits));
  Upload(k);
  Tensor k_out = Poisoned(kv_dtype(), {3, 20, 32}), v_out = Poisoned(kv_dtype(), {3, 20, 32});
  Tensor k_part = k_out.Slice(1, 4, 15), v_part = v_out.Slice(1, 9, 20);
  ops().StoreKv(k.Heads(3).device, v.Heads(3).device, k_part.device, v_part.device);
  reference::StoreKv(k.Heads(3).host, v.Heads(3).host, k_part.host, v_part.host);
  ExpectSame(k_out, 0);
  ExpectSame(v_out, 0);
}

}  // namespace
}  // namespace sluice
