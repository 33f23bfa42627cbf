// The selections that read few rows over a real cache: their outputs against
// tests/golden/compression/make_reads.py, how much they read and of what, and how a request becomes their
// numbers.
#include <array>
#include <functional>
#include <numeric>

#include "common/compression/compression_spec.h"
#include "common/compression/selection/selector.h"
#include "common/kvcache/decode_cache.h"
#include "common/kvcache/sequence_kv.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/compression/gate_requests.h"
#include "tests/common/compression/golden_cases.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr SelectionKind kKinds[] = {SelectionKind::kHsa,       SelectionKind::kQuest,
                                    SelectionKind::kSparq,     SelectionKind::kSparqWithoutMean,
                                    SelectionKind::kExactTopK, SelectionKind::kExactTopKGroup};

SelectionKind KindNamed(const std::string& name) {
  for (SelectionKind kind : kKinds)
    if (name == NameOf(kind)) return kind;
  ADD_FAILURE() << name;
  return SelectionKind::kDense;
}

// A cache of one layer, some rows of which one step reads.
struct Step {
  int kv_heads = 2, group = 1, head_dim = 16;
  std::vector<int> rows;  // of each KV head
  int appended = 0;       // of them by decode steps
  // Of KV head, row, channel; q of query head, channel.
  std::function<float(int, int, int)> k, v;
  std::function<float(int, int)> q;

  // [query heads, head_dim]. Attention is asked as in layer `layer`.
  std::vector<float> Read(const SelectionGate& gate, int layer = 2) const {
    const std::unique_ptr<Backend> backend = *NewCpuBackend({});
    const std::unique_ptr<Ops> ops = backend->NewOps();
    DecodeCacheOptions options;
    options.n_slots = 1;
    options.max_rows = 640;
    options.memory_bytes = 16 << 20;
    const auto cache = *DecodeCache::Create(
        backend.get(),
        {.n_layers = 1, .n_q_heads = kv_heads * group, .n_kv_heads = kv_heads, .head_dim = head_dim},
        options);
    const Selector& selector = SelectorOf(gate.kind);
    auto kv = *cache->NewSequence(selector.parameters(gate), rows);
    int most = 0;
    for (int head = 0; head < kv_heads; ++head) {
      const int n = rows[head] - appended;
      most = std::max(most, rows[head]);
      std::vector<uint16_t> k_rows, v_rows;
      for (int row = 0; row < n; ++row) {
        for (int d = 0; d < head_dim; ++d) {
          k_rows.push_back(ToBf16(k(head, row, d)));
          v_rows.push_back(ToBf16(v(head, row, d)));
        }
      }
      std::vector<int32_t> positions(n);
      std::iota(positions.begin(), positions.end(), 0);
      SLUICE_CHECK(
          kv->Write(LayerId(0), head, 0, TensorView::Contiguous(k_rows.data(), DType::kBF16, {n, head_dim}),
                    TensorView::Contiguous(v_rows.data(), DType::kBF16, {n, head_dim}), positions, *ops)
              .ok());
      SLUICE_CHECK(ops->Sync().ok());
    }
    kv->FinishWrites(0, *ops);
    int32_t slot = kv->slot();
    const PagedKv view = cache->View(LayerId(0), TensorView::Contiguous(&slot, DType::kI32, {1}));
    for (int i = 0; i < appended; ++i) {
      SLUICE_CHECK(kv->ReserveAppend(*ops).ok());
      std::vector<float> k_row, v_row;
      for (int head = 0; head < kv_heads; ++head) {
        for (int d = 0; d < head_dim; ++d) {
          k_row.push_back(k(head, rows[head] - appended + i, d));
          v_row.push_back(v(head, rows[head] - appended + i, d));
        }
      }
      ops->AppendKv(TensorView::Contiguous(k_row.data(), DType::kF32, {1, kv_heads, head_dim}),
                    TensorView::Contiguous(v_row.data(), DType::kF32, {1, kv_heads, head_dim}), view);
      SLUICE_CHECK(ops->Sync().ok());
      kv->Appended(most + i);
    }
    const int64_t heads = kv_heads * group;
    std::vector<float> queries, out(heads * head_dim);
    for (int head = 0; head < heads; ++head)
      for (int d = 0; d < head_dim; ++d) queries.push_back(q(head, d));
    selector.Attend(LayerId(layer), TensorView::Contiguous(queries.data(), DType::kF32, {1, heads, head_dim}),
                    view, *ops, TensorView::Contiguous(out.data(), DType::kF32, {1, heads, head_dim}));
    SLUICE_CHECK(ops->Sync().ok());
    return out;
  }
};

Step Hashed(int kv_heads, int group, int head_dim, int n, uint32_t seed) {
  Step step;
  step.kv_heads = kv_heads;
  step.group = group;
  step.head_dim = head_dim;
  step.rows.assign(kv_heads, n);
  const auto of_row = [n, head_dim](uint32_t s) {
    return [=](int head, int row, int d) {
      return HashedValue(s, static_cast<uint32_t>((head * n + row) * head_dim + d));
    };
  };
  step.k = of_row(3 * seed + 1);
  step.v = of_row(3 * seed + 2);
  step.q = [=](int head, int d) { return HashedValue(3 * seed, static_cast<uint32_t>(head * head_dim + d)); };
  return step;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

TEST(SparseSelectionGolden, OutputsAreEqual) {
  const nlohmann::json cases = GoldenCases("reads.json");
  ASSERT_GE(cases.size(), 60u);
  for (const auto& c : cases) {
    SCOPED_TRACE(AskedIn(c));
    Step step = Hashed(c["kv_heads"], c["group"], c["head_dim"], c["n"], c["seed"]);
    const SelectionGate gate = {
        .kind = KindNamed(c["method"]), .page = c["page"], .channels = c["channels"], .tokens = c["tokens"]};
    for (int appended : {0, 9}) {
      step.appended = appended;
      ExpectNear(step.Read(gate), c["out"].get<std::vector<float>>(), 1e-5);
    }
  }
}

// A value is the number of its row, as one of 64 channels: an output is the weights of the rows.
Step OneHot(int group, std::vector<int> rows, uint32_t seed) {
  Step step = Hashed(static_cast<int>(rows.size()), group, 64, 64, seed);
  step.rows = std::move(rows);
  step.v = [](int, int row, int d) { return row == d ? 1.f : 0.f; };
  return step;
}

SelectionGate GateOf(SelectionKind kind, int tokens) {
  switch (kind) {
    case SelectionKind::kHsa:
      return {kind, 3, 24, tokens};
    case SelectionKind::kQuest:
      return {kind, 4, 64, tokens};
    case SelectionKind::kSparq:
    case SelectionKind::kSparqWithoutMean:
      return {kind, 1, 24, tokens};
    default:
      return {kind, 0, 0, tokens};
  }
}

// What every selection owes: weights that sum to one, of rows that are there, of no more than it may read, of
// all where they fit.
TEST(SparseSelectionConformance, ReadsWhatItMay) {
  uint32_t seed = 0;
  for (SelectionKind kind : kKinds) {
    for (int group : {1, 3, 4, 7, 8}) {
      for (int tokens : {1, 4, 13, 16, 63, 64, 100}) {
        const Step step = OneHot(group, {1, 15, 16, 17, 61, 64}, ++seed);
        const SelectionGate gate = GateOf(kind, tokens);
        const std::vector<float> out = step.Read(gate);
        for (size_t head = 0; head < step.rows.size() * group; ++head) {
          SCOPED_TRACE(std::string(NameOf(kind)) + " group " + std::to_string(group) + " tokens " +
                       std::to_string(tokens) + " query head " + std::to_string(head));
          const int n = step.rows[head / group];
          int read = 0;
          double sum = 0;
          for (int d = 0; d < 64; ++d) {
            const float weight = out[head * 64 + d];
            ASSERT_GE(weight, 0);
            ASSERT_TRUE(d < n || weight == 0) << d;
            read += weight > 0;
            sum += weight;
          }
          EXPECT_NEAR(sum, 1, 1e-5);
          // Quest reads whole pages, one at least; the mean of the values is of every row.
          const int most = kind == SelectionKind::kQuest ? std::max(1, tokens / 4) * 4 : tokens;
          if (kind == SelectionKind::kSparq) {
            EXPECT_EQ(read, n);
          } else {
            EXPECT_LE(read, std::min(most, n));
          }
          const bool all = kind == SelectionKind::kQuest ? tokens / 4 >= (n + 3) / 4 : tokens >= n;
          EXPECT_TRUE(!all || read == n) << read;
        }
      }
    }
  }
}

TEST(SparseSelection, TheLatestRowsOfSparqAreReadWhateverTheirScore) {
  Step step = OneHot(3, {64}, 5);
  // The scores of the latest rows are the worst.
  const auto hashed = step.k;
  step.k = [hashed, &step](int head, int row, int d) {
    if (row < 50) return hashed(head, row, d);
    return -(step.q(0, d) + step.q(1, d) + step.q(2, d)) / 4;
  };
  const auto read = [&](int tokens, int row) {
    const std::vector<float> out = step.Read(GateOf(SelectionKind::kSparqWithoutMean, tokens));
    return out[row] > 0;
  };
  for (int tokens : {4, 16, 20}) {
    for (int row = 50; row < 64; ++row)
      EXPECT_EQ(read(tokens, row), row >= 64 - tokens / 4 - 1) << tokens << " " << row;
  }
}

TEST(SparseSelection, TheLowestLayersOfQuestAreDense) {
  const Step step = Hashed(2, 3, 16, 300, 7);
  const SelectionGate gate = {SelectionKind::kQuest, 16, 16, 48};
  const std::vector<float> dense = step.Read({});
  EXPECT_EQ(step.Read(gate, 0), dense);
  EXPECT_EQ(step.Read(gate, 1), dense);
  EXPECT_NE(step.Read(gate, 2), dense);
}

// At the setting that reads every row a method is dense attention.
TEST(SparseSelection, AtItsIdentityItIsDense) {
  for (int n : {1, 16, 65, 300}) {
    Step step = Hashed(2, 4, 16, n, 11);
    step.appended = n > 1 ? 5 : 0;
    const std::vector<float> dense = step.Read({});
    for (SelectionKind kind : kKinds) {
      SelectionGate gate = GateOf(kind, 304);
      if (gate.channels > 0) gate.channels = 16;
      ExpectNear(step.Read(gate), dense, 1e-5);
    }
  }
}

TEST(SparseSelection, NumbersFromElsewhereAreChecked) {
  EXPECT_TRUE(CheckNumbers({}, 64).ok());
  for (SelectionKind kind : kKinds) {
    const SelectionGate good = GateOf(kind, 5);
    EXPECT_TRUE(CheckNumbers(good, 64).ok()) << NameOf(kind);
    SelectionGate bad = good;
    bad.tokens = 0;
    EXPECT_THAT(CheckNumbers(bad, 64).message(), HasSubstr(NameOf(kind)));
    if (good.page == 0) continue;
    bad = good;
    bad.page = kind == SelectionKind::kQuest ? 1 : kind == SelectionKind::kHsa ? 0 : 2;
    EXPECT_THAT(CheckNumbers(bad, 64).message(), HasSubstr("pages"));
    for (int channels : {0, 65}) {
      bad = good;
      bad.channels = channels;
      EXPECT_THAT(CheckNumbers(bad, 64).message(), HasSubstr("channels"));
    }
  }
}

GateContext SlidingWindow() {
  GateContext context = LongPrompt();
  context.sliding_window = true;
  return context;
}
CompressionSpec Asked(const char* preset, std::optional<int> budget = std::nullopt) {
  CompressionSpec spec = Named(preset);
  spec.budget_tokens = budget;
  return spec;
}

TEST(SparseSelectionPresets, Numbers) {
  for (const char* preset : {"quest", "sparq", "exact_topk"}) {
    const ResolvedGates gates = Resolve(Asked(preset));
    EXPECT_EQ(gates.method, preset);
    EXPECT_EQ(gates.budget_tokens, 1024);
    EXPECT_EQ(gates.retention, RetentionGate{});
    EXPECT_EQ(gates.history, HistoryKind::kKeep);
    EXPECT_EQ(gates.off_reason, "");
  }
  EXPECT_EQ(Resolve(Asked("quest")).selection, (SelectionGate{SelectionKind::kQuest, 16, 128, 1024}));
  EXPECT_EQ(Resolve(Asked("quest", 255)).selection.tokens, 240);  // whole pages
  EXPECT_EQ(Resolve(Asked("quest", 20)).selection.tokens, 48);    // three at least
  EXPECT_EQ(Resolve(Asked("sparq")).selection, (SelectionGate{SelectionKind::kSparq, 1, 16, 1024}));
  EXPECT_EQ(Resolve(Asked("exact_topk", 77)).selection, (SelectionGate{SelectionKind::kExactTopK, 0, 0, 77}));
}

TEST(SparseSelectionPresets, PageAndChannelsMayBeSet) {
  CompressionSpec spec = Asked("quest", 128);
  spec.selection_page = 64;
  EXPECT_EQ(Resolve(spec).selection, (SelectionGate{SelectionKind::kQuest, 64, 128, 128}));
  spec.selection_page = 200;  // more than is read: one page, and the floor of three is of pages of 16
  EXPECT_EQ(Resolve(spec).selection.tokens, 200);
  spec.selection_page = 1;
  EXPECT_THAT(Refusal(spec), HasSubstr("selection page 1"));
  spec = Asked("sparq");
  spec.selection_channels = 5;
  EXPECT_EQ(Resolve(spec).selection.channels, 5);
  spec.selection_channels = 129;
  EXPECT_THAT(Refusal(spec), HasSubstr("selection channels 129"));
  spec = Asked("rocketkv");
  spec.selection_channels = 5;
  EXPECT_THAT(Refusal(spec), HasSubstr("sparq's"));
  spec = Asked("sparq");
  spec.selection_page = 16;
  EXPECT_THAT(Refusal(spec), HasSubstr("quest's"));
}

TEST(SparseSelectionPresets, AnyRetentionMayGoBefore) {
  CompressionSpec spec = Asked("exact_topk", 256);
  spec.retention = RetentionKind::kSnapKv;
  spec.selection = SelectionKind::kExactTopKGroup;
  const ResolvedGates gates = Resolve(spec);
  EXPECT_EQ(gates.method, "custom");
  EXPECT_EQ(gates.retention.budget, 256);
  EXPECT_EQ(gates.selection, (SelectionGate{SelectionKind::kExactTopKGroup, 0, 0, 256}));
}

TEST(SparseSelectionPresets, SlidingWindowsAreRefusedOrReadWhole) {
  CompressionSpec spec = Asked("quest");
  EXPECT_THAT(Refusal(spec, SlidingWindow()),
              HasSubstr("quest is not served on a model with sliding-window layers"));
  spec.fallback_full = true;
  const ResolvedGates gates = Resolve(spec, SlidingWindow());
  EXPECT_EQ(gates.selection, SelectionGate{});
  EXPECT_EQ(gates.budget_tokens, 0);
  EXPECT_THAT(gates.off_reason, HasSubstr("quest is not served"));
}

}  // namespace
}  // namespace sluice
