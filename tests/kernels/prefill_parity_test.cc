// Parity of attention, of the scores under the observation window, and of pooling, selection and gathering.
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/parity.h"

namespace sluice {
namespace {

struct Heads {
  int q, kv, dim;
};
// Llama-3.1-8B, Qwen2.5-0.5B, SmolLM2-135M, needle-14m, then groups of 1, 8 and 9 and other head sizes.
const Heads kHeads[] = {{32, 8, 128}, {14, 2, 64}, {9, 3, 64}, {6, 2, 64}, {2, 2, 64},
                        {8, 1, 80},   {9, 1, 16},  {4, 2, 48}, {2, 1, 256}};

std::string Name(const Heads& h) { return absl::StrCat(h.q, "/", h.kv, "x", h.dim); }

class PrefillParity : public ParityTest {
 protected:
  struct Sequence {
    Tensor qkv, k, v, out, lse, positions;
    AttentionArgs host, device;
  };
  // n queries at the end of len keys; q lies inside fused rows.
  Sequence Make(const Heads& h, int n, int len, int window, int sliding_window = 0, DType out = DType::kF32) {
    Sequence s;
    s.qkv = Random(DType::kF32, {n, (h.q + 2 * h.kv) * h.dim});
    if (GetParam().rounds_queries) RoundOnHost(s.qkv);
    s.k = Random(kv_dtype(), {h.kv, len + 3, h.dim});
    s.v = Random(kv_dtype(), {h.kv, len + 3, h.dim});
    s.out = Poisoned(out, {n, h.q * h.dim});
    if (window > 0) s.lse = Poisoned(DType::kF32, {h.q, window});
    std::vector<int> positions(h.kv * len);
    for (int g = 0; g < h.kv; ++g)  // gaps, as after a propagation gate
      for (int j = 0, p = 0; j < len; ++j, p += 1 + (j * 7 + g) % 3) positions[g * len + j] = p;
    s.positions = Ints({h.kv, len}, positions);
    auto fill = [&](AttentionArgs& a, auto side) {
      a.q = side(s.qkv.Slice(1, 0, h.q * h.dim).Heads(h.q));
      a.k = side(s.k.Slice(1, 0, len));
      a.v = side(s.v.Slice(1, 0, len));
      a.out = side(s.out.Heads(h.q));
      if (window > 0) a.lse = side(s.lse);
      a.positions = side(s.positions);
      a.sliding_window = sliding_window;
    };
    fill(s.host, [](const Tensor& t) { return t.host; });
    fill(s.device, [](const Tensor& t) { return t.device; });
    return s;
  }
  void Check(Sequence& s, const Heads& h, const std::string& what) {
    reference::Attention(s.host);
    const bool rounded = s.out.host.dtype == DType::kBF16;
    ExpectSame(s.out, AttentionTolerance(GetParam(), h.dim), what,
               rounded ? std::ldexp(1, -7) : GetParam().output_error);
    if (s.lse.host.data != nullptr) ExpectSame(s.lse, ScoreTolerance(GetParam(), h.dim), what + " lse");
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, PrefillParity, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(PrefillParity, Attention) {
  for (const Heads& h : kHeads) {
    for (int len : {1, 2, 63, 64, 65, 150}) {
      for (int n : {len, 1, len / 2}) {
        if (n < 1 || (n == len / 2 && len < 65)) continue;
        Sequence s = Make(h, n, len, std::min(n, 32));
        ops().Attention({&s.device, 1});
        Check(s, h, absl::StrCat(Name(h), " n ", n, " len ", len));
      }
    }
  }
}

TEST_P(PrefillParity, AttentionWritesWhatProductsRead) {
  for (const Heads& h : kHeads) {
    for (int len : {1, 150}) {
      Sequence s = Make(h, len, len, 1, 0, backend().product_input());
      ops().Attention({&s.device, 1});
      Check(s, h, absl::StrCat(Name(h), " len ", len));
      Sequence sliding = Make(h, len, len, 1, 40, backend().product_input());
      ops().Attention({&sliding.device, 1});
      Check(sliding, h, absl::StrCat(Name(h), " sliding, len ", len));
    }
  }
}

TEST_P(PrefillParity, AttentionOverManyKeyBlocks) {
  for (int i = 0; i < 4; ++i) {
    Sequence s = Make(kHeads[i], 70, 600, 32);
    ops().Attention({&s.device, 1});
    Check(s, kHeads[i], Name(kHeads[i]));
  }
}

TEST_P(PrefillParity, AttentionOfSeveralSequences) {
  const Heads h = {14, 2, 64};
  std::vector<Sequence> sequences = {Make(h, 65, 65, 8), Make(h, 1, 90, 0), Make(h, 70, 300, 70, 100)};
  std::vector<AttentionArgs> device;
  for (Sequence& s : sequences) device.push_back(s.device);
  ops().Attention(device);
  for (size_t i = 0; i < sequences.size(); ++i) Check(sequences[i], h, absl::StrCat("sequence ", i));

  sequences.clear();
  device.clear();
  for (int i = 0; i < 35; ++i) sequences.push_back(Make(h, 1 + i % 7, 40 + 3 * i, 1));
  for (Sequence& s : sequences) device.push_back(s.device);
  ops().Attention(device);
  for (size_t i = 0; i < sequences.size(); ++i) Check(sequences[i], h, absl::StrCat("many, sequence ", i));
}

TEST_P(PrefillParity, AttentionInASlidingWindow) {
  for (const Heads& h : {Heads{14, 2, 64}, Heads{8, 8, 128}}) {
    for (int sliding : {1, 5, 64, 150, 100000}) {
      Sequence s = Make(h, 70, 210, 32, sliding);
      ops().Attention({&s.device, 1});
      Check(s, h, absl::StrCat(Name(h), " sliding ", sliding));
    }
  }
}

// A query's result is the same, bit for bit, however much of the prompt was in the cache.
TEST_P(PrefillParity, WarmAttentionEqualsCold) {
  for (const Heads& h : {Heads{14, 2, 64}, Heads{6, 2, 64}, Heads{32, 8, 128}}) {
    const int len = 333;
    Sequence cold = Make(h, len, len, 0);
    ops().Attention({&cold.device, 1});
    for (int cached : {1, 64, 100, 332}) {
      Tensor out = Poisoned(DType::kF32, {len, h.q * h.dim});
      AttentionArgs first = cold.device, second = cold.device;
      first.q = first.q.Slice(0, 0, cached);
      first.k = first.k.Slice(1, 0, cached);
      first.v = first.v.Slice(1, 0, cached);
      first.out = out.Heads(h.q).Slice(0, 0, cached).device;
      second.q = second.q.Slice(0, cached, len);
      second.out = out.Heads(h.q).Slice(0, cached, len).device;
      ops().Attention({&first, 1});
      ops().Attention({&second, 1});
      EXPECT_EQ(Download(out), Download(cold.out)) << Name(h) << " cached " << cached;
    }
  }
}

// Beyond what a backend takes at a time, with a window across that boundary (CUDA: 16384 queries by cuDNN).
TEST_P(PrefillParity, LongAttentionEqualsItsLastQueries) {
  const Heads h = {1, 1, 64};
  const int len = 16400, last = 40, window = 32;
  Sequence all = Make(h, len, len, window);
  Tensor out = Poisoned(DType::kF32, {last, h.q * h.dim}), lse = Poisoned(DType::kF32, {h.q, window});
  AttentionArgs part = all.device;
  part.q = part.q.Slice(0, len - last, len);
  part.out = out.Heads(h.q).device;
  part.lse = lse.device;
  ops().Attention({&all.device, 1});
  ops().Attention({&part, 1});
  const std::vector<char> whole = Download(all.out), end = Download(out);
  const size_t bytes = last * h.q * h.dim * sizeof(float), guard = (end.size() - bytes) / 2;
  EXPECT_EQ(std::memcmp(whole.data() + whole.size() - guard - bytes, end.data() + guard, bytes), 0);
  EXPECT_EQ(Download(all.lse), Download(lse));
}

TEST_P(PrefillParity, WindowScores) {
  for (const Heads& h : kHeads) {
    for (int window : {1, 32}) {
      for (int prefix : {0, 1, 64, 65, 200}) {
        for (int sliding : {0, 120}) {
          if (prefix < 200 && sliding > 0) continue;
          Sequence s = Make(h, window, prefix + window, window, sliding);
          reference::Attention(s.host);
          Upload(s.lse);
          Tensor scores = Poisoned(DType::kF32, {h.kv, prefix + 5});
          Tensor part = scores.Slice(1, 0, prefix);
          ops().WindowScores(
              {s.device.q, s.device.k, s.device.lse, part.device, s.device.positions, sliding});
          reference::WindowScores({s.host.q, s.host.k, s.host.lse, part.host, s.host.positions, sliding});
          // A score is a sum of window * group probabilities.
          ExpectSame(scores, ScoreTolerance(GetParam(), h.dim) * window * (h.q / h.kv),
                     absl::StrCat(Name(h), " window ", window, " prefix ", prefix, " sliding ", sliding));
        }
      }
    }
  }
}

// Rows that only some queries see, one row of scores a query head, raw products, rounded weights, sums over
// several calls.
TEST_P(PrefillParity, WindowScoresOfTheWindowItself) {
  for (const Heads& h : kHeads) {
    for (int sliding : {0, 50}) {
      const int window = 70, len = 150;
      Sequence s = Make(h, window, len, window, sliding);
      reference::Attention(s.host);
      Upload(s.lse);
      for (int64_t rows : {h.kv, h.q}) {
        for (auto [raw, round] : {std::pair{false, false}, {false, true}, {true, false}}) {
          Tensor scores = Random(DType::kF32, {rows, len});
          for (int n : {len - window + 1, 133, len}) {
            auto side = [&, raw = raw, round = round](const AttentionArgs& a, TensorView out) {
              WindowScoresArgs args{a.q, a.k, raw ? TensorView() : a.lse, out, a.positions, sliding};
              args.raw = raw;
              args.round_weights = round;
              args.accumulate = true;
              return args;
            };
            const Tensor part = scores.Slice(1, 0, n);
            ops().WindowScores(side(s.device, part.device));
            reference::WindowScores(side(s.host, part.host));
          }
          // Three calls' sums; raw products are sqrt(d) times as large as the scores of the tolerance. An
          // error may turn the rounding of a few weights, each by its last of eight bits.
          const double each = ScoreTolerance(GetParam(), h.dim) * window * (h.q / rows);
          const double tolerance =
              3 * each * (raw ? std::sqrt(h.dim) : 1) + (round ? 4 * std::ldexp(1, -8) : 0);
          ExpectSame(
              scores, tolerance,
              absl::StrCat(Name(h), " rows ", rows, " sliding ", sliding, " raw ", raw, " round ", round));
        }
      }
    }
  }
}

TEST_P(PrefillParity, Pool) {
  for (int n : {1, 2, 7, 63, 64, 700}) {
    Tensor scores = Random(DType::kF32, {3, n});
    float* s = scores.host.as<float>();
    for (int i = 0; i < 3 * n; ++i) s[i] = i % 2 == 0 ? s[i] : std::fabs(s[i]) * 100;
    Upload(scores);
    std::vector<Pooling> poolings = {{Pooling::kMax, 1},     {Pooling::kMax, 7},   {Pooling::kMax, 63},
                                     {Pooling::kMax, 1401},  {Pooling::kAvg, 1},   {Pooling::kAvg, 5},
                                     {Pooling::kAvg, 63},    {Pooling::kChunk, 1}, {Pooling::kChunk, 10},
                                     {Pooling::kChunk, 1024}};
    for (auto [after, before] : {std::pair{16.f, 4.f}, {0.5f, 3.f}, {2.f, 1.f}}) {
      Pooling fading;
      fading.kind = Pooling::kFading;
      fading.after = after;
      fading.before = before;
      poolings.push_back(fading);
    }
    for (const Pooling& pooling : poolings) {
      Tensor out = Poisoned(DType::kF32, {3, n});
      ops().Pool(scores.device, pooling, out.device);
      reference::Pool(scores.host, pooling, out.host);
      const bool exact = pooling.kind == Pooling::kMax;
      ExpectSame(out, exact ? 0 : ElementTolerance(100), absl::StrCat("kind ", pooling.kind, " n ", n));
    }
  }
}

TEST_P(PrefillParity, PoolCutsTheFadingReach) {
  // One spike, then far less than it is worth at the cut: rows past 32 * reach must not see it.
  std::vector<float> x(800, 1e-30f);
  x[100] = x[700] = 1e6f;
  Tensor scores = Floats({1, 800}, x), out = Poisoned(DType::kF32, {1, 800});
  Pooling fading = {Pooling::kFading, 1, 8, 2};
  ops().Pool(scores.device, fading, out.device);
  reference::Pool(scores.host, fading, out.host);
  const std::vector<char> bytes = Download(out);
  const float* got = reinterpret_cast<const float*>(bytes.data() + 256);
  for (int i = 0; i < 800; ++i) {
    const double want = reference::Get(out.host, 0, i);
    EXPECT_NEAR(got[i] / want, 1, 1e-6) << i;
  }
  EXPECT_GT(got[100 + 256], 1e-20);
  EXPECT_LT(got[100 + 257], 1e-20);
}

TEST_P(PrefillParity, PoolKeepsInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  Tensor scores = Floats({1, 6}, {-inf, 1, -inf, -inf, -inf, -inf});
  for (const Pooling& pooling : {Pooling{Pooling::kMax, 3}, Pooling{Pooling::kFading, 1, 16, 4}}) {
    Tensor out = Poisoned(DType::kF32, {1, 6});
    ops().Pool(scores.device, pooling, out.device);
    reference::Pool(scores.host, pooling, out.host);
    ExpectSame(out, ElementTolerance(1));
  }
}

TEST_P(PrefillParity, SumHeads) {
  for (int n : {1, 100, 20000}) {
    Tensor scores = Random(DType::kF32, {8, n}), out = Poisoned(DType::kF32, {n});
    ops().SumHeads(scores.device, out.device);
    reference::SumHeads(scores.host, out.host);
    ExpectSame(out, SumTolerance(8, 1));
  }
}

TEST_P(PrefillParity, ArgMax) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (int n : {1, 5, 257, 50000}) {
    for (int levels : {2, 1000000}) {
      std::vector<float> values(9 * n);
      for (float& x : values) x = (static_cast<int>(random_() % levels) - levels / 2) * 0.5f;
      for (int i = 0; i < n; ++i) values[i] = i % 2 == 0 ? -0.f : 0.f;  // the lowest of equals
      for (int i = n; i < 2 * n; ++i) values[i] = -infinity;            // nothing to choose
      values[2 * n + random_() % n] = nan;
      values[3 * n + random_() % n] = infinity;
      values[4 * n + random_() % n] = -infinity;
      values[5 * n + n - 1] = 1e9f;
      values[6 * n] = 1e9f;
      Tensor x = Floats({9, n}, values), out = Poisoned(DType::kI32, {9});
      ops().ArgMax(x.device, out.device);
      reference::ArgMax(x.host, out.host);
      ExpectSame(out, 0, "n " + std::to_string(n));
    }
  }
}

// What was queued under a key runs again on whatever the memory then holds, also after scratch memory grew.
TEST_P(PrefillParity, Replay) {
  const Tensor replayed_x = Random(DType::kF32, {3, 1000}), replayed_best = Poisoned(DType::kI32, {3});
  for (int round = 0; round < 6; ++round) {
    Tensor x = Random(DType::kF32, {3, 1000}), best = Poisoned(DType::kI32, {3});
    ops().Copy(x.device, replayed_x.device);
    ASSERT_TRUE(ops()
                    .Replay({7, 3},
                            [&] {
                              ops().ArgMax(replayed_x.device, replayed_best.device);
                              return absl::OkStatus();
                            })
                    .ok());
    ops().Copy(replayed_best.device, best.device);
    reference::ArgMax(x.host, best.host);
    ExpectSame(best, 0, "round " + std::to_string(round));
    if (round == 3) {
      Tensor many = Random(DType::kF32, {20000, 10}), out = Poisoned(DType::kI32, {20000});
      ops().ArgMax(many.device, out.device);
      reference::ArgMax(many.host, out.host);
      ExpectSame(out, 0);
    }
  }
  EXPECT_TRUE(absl::IsAborted(ops().Replay({8}, [] { return absl::AbortedError("not queued"); })));
}

TEST_P(PrefillParity, SelectTop) {
  for (int n : {1, 2, 64, 1000, 20000}) {
    for (int levels : {1, 2, 5, 1000000}) {  // few levels: nearly everything ties
      std::vector<float> values(3 * n);
      for (float& x : values) x = (static_cast<int>(random_() % levels) - levels / 2) * 0.5f;
      if (n > 4) {
        values[1] = -0.f;
        values[2] = 0.f;
        values[3] = -std::numeric_limits<float>::infinity();
        values[4] = std::numeric_limits<float>::infinity();
      }
      Tensor scores = Floats({3, n}, values);
      for (int k : {0, 1, n / 3, n - 1, n}) {
        for (int tail : {0, 4}) {
          if (k + tail == 0) continue;
          Tensor rows = Poisoned(DType::kI32, {3, k + tail});
          ops().SelectTop(scores.device, k, tail, rows.device);
          reference::SelectTop(scores.host, k, tail, rows.host);
          ExpectSame(rows, 0, absl::StrCat("n ", n, " levels ", levels, " k ", k));
        }
      }
    }
  }
}

TEST_P(PrefillParity, GatherRows) {
  Tensor x = Random(DType::kF32, {40, 33}), rows = Ints({5}, {39, 0, 7, 7, 12});
  Tensor out = Poisoned(DType::kF32, {5, 50}), part = out.Slice(1, 2, 35);
  ops().GatherRows(x.device, rows.device, part.device);
  reference::GatherRows(x.host, rows.host, part.host);
  ExpectSame(out, 0);
}

TEST_P(PrefillParity, GatherKvCompactsRaggedHeads) {
  const int kept[] = {5, 0, 3};
  Tensor k = Random(kv_dtype(), {3, 25, 32}), v = Random(kv_dtype(), {3, 25, 32});
  std::vector<int> order(20);
  std::iota(order.begin(), order.end(), 1000);
  Tensor positions = Ints({20}, order),
         rows = Ints({3, 6}, {0, 3, 4, 18, 19, -1, -1, -1, -1, -1, -1, -1, 1, 2, 7, -1, -1, -1});
  auto shared = [](TensorView view) {  // one row of positions for all heads
    view.rank = 2;
    view.shape = {3, 20};
    view.stride = {0, 1};
    return view;
  };
  Tensor k_out = Poisoned(kv_dtype(), {8, 32}), v_out = Poisoned(kv_dtype(), {8, 32});
  Tensor positions_out = Poisoned(DType::kI32, {8});
  Tensor k_part = k.Slice(1, 2, 22), v_part = v.Slice(1, 5, 25);
  ops().GatherKv(k_part.device, v_part.device, shared(positions.device), rows.device, kept, k_out.device,
                 v_out.device, positions_out.device);
  reference::GatherKv(k_part.host, v_part.host, shared(positions.host), rows.host, kept, k_out.host,
                      v_out.host, positions_out.host);
  ExpectSame(k_out, 0);
  ExpectSame(v_out, 0);
  ExpectSame(positions_out, 0);
}

}  // namespace
}  // namespace sluice
