// What a measurement says against a naive computation in f64, and what must hold of every method.
#include "common/engine/loss_measurement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/status.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/ranked_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

// Of one rank.
const RankedModel& Needle(DType dtype = DType::kF32) {
  static const RankedTestModel f32 = LoadRanked(SourcePath("models/needle-14m"), 1, DType::kF32);
  static const RankedTestModel bf16 = LoadRanked(SourcePath("models/needle-14m"), 1, DType::kBF16);
  return dtype == DType::kF32 ? *f32.model : *bf16.model;
}

ResolvedGates GatesOf(const RankedModel& model, const std::string& preset, int budget, int prompt_tokens) {
  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = budget;
  spec.min_prompt_tokens = 0;
  absl::StatusOr<ResolvedGates> gates = ResolveFor(model.shape(), spec, prompt_tokens, 32);
  EXPECT_TRUE(gates.ok()) << gates.status();
  return *gates;
}

// A cache for measurements, and what prefill would have kept.
struct Bench {
  explicit Bench(const RankedModel& ranked, size_t memory_bytes = size_t{128} << 20) : model(ranked) {
    auto created = RankedCache::Create(model.group(), model.kv_shape(),
                                       {.n_slots = 2,
                                        .max_rows = model.shape().context,
                                        .memory_bytes = memory_bytes,
                                        .bounds_share = 0.2,
                                        .sliding_windows = model.shape().sliding_window});
    SLUICE_CHECK(created.ok());
    cache = *std::move(created);
    decode = std::make_unique<RankedDecode>(&model, cache.get());
  }

  absl::StatusOr<CompressionLoss> Measure(const std::vector<int32_t>& ids, const ResolvedGates& gates) {
    SLUICE_ASSIGN_OR_RETURN(kept, PrefillRanked(model, ids, gates));
    SLUICE_ASSIGN_OR_RETURN(
        std::unique_ptr<LossMeasurement> measurement,
        LossMeasurement::Begin(&model, cache.get(), decode.get(), {ids, gates, &kept.kept}));
    while (!measurement->done()) SLUICE_RETURN_IF_ERROR(measurement->Step());
    return measurement->loss();
  }

  const RankedModel& model;
  std::unique_ptr<RankedCache> cache;
  std::unique_ptr<RankedDecode> decode;
  RankedPrompt kept;
};

double Mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The queries and keys that the layers of a prompt attend with.
class Capture final : public AttentionObserver {
 public:
  struct Layer {
    std::vector<float> q, k;  // [window, n_q_heads, d], [n_kv_heads, n, d]
    int window = 0, n_q = 0, n_kv = 0, n = 0, d = 0, sliding = 0;
  };
  int queries() const override { return RetainedMass::kQueries; }
  absl::Status OnAttention(const LayerView& view, Ops& ops, Workspace& workspace) override {
    Layer layer;
    layer.window = static_cast<int>(view.q_window.shape[0]);
    layer.n_q = static_cast<int>(view.q_window.shape[1]);
    layer.d = static_cast<int>(view.q_window.shape[2]);
    layer.n_kv = static_cast<int>(view.k.shape[0]);
    layer.n = view.n_tokens;
    layer.sliding = view.sliding_window;
    const auto read = [&](const TensorView& from, std::vector<float>* to) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(const TensorView dense,
                              workspace.Take(DType::kF32, {from.shape[0], from.shape[1], from.shape[2]}));
      to->resize(from.shape[0] * from.shape[1] * from.shape[2]);
      ops.Copy(from, dense);
      ops.CopyOut(dense, to->data());
      return ops.Sync();
    };
    SLUICE_RETURN_IF_ERROR(read(view.q_window, &layer.q));
    SLUICE_RETURN_IF_ERROR(read(view.k, &layer.k));
    layers.push_back(std::move(layer));
    return absl::OkStatus();
  }
  std::vector<Layer> layers;
};

// Softmax by its definition, f64 throughout.
double NaiveMass(const Capture::Layer& at, const KeptLayer& kept, const Model& model) {
  double total = 0;
  for (int head = 0; head < at.n_q; ++head) {
    const int kv_head = head / (at.n_q / at.n_kv);
    const std::vector<int32_t> rows = KeptPositions(model, kept, kv_head);
    for (int i = 0; i < at.window; ++i) {
      const int position = at.n - at.window + i;
      std::vector<double> weights(at.n, 0.0);
      double most = -1e300, sum = 0;
      const auto sees = [&](int row) {
        return row <= position && (at.sliding == 0 || row > position - at.sliding);
      };
      for (int row = 0; row < at.n; ++row) {
        if (!sees(row)) continue;
        for (int c = 0; c < at.d; ++c)
          weights[row] += static_cast<double>(at.q[(i * at.n_q + head) * at.d + c]) *
                          static_cast<double>(at.k[(kv_head * at.n + row) * at.d + c]);
        weights[row] /= std::sqrt(static_cast<double>(at.d));
        most = std::max(most, weights[row]);
      }
      for (int row = 0; row < at.n; ++row) {
        weights[row] = sees(row) ? std::exp(weights[row] - most) : 0;
        sum += weights[row];
      }
      for (int32_t row : rows) total += weights[row] / sum;
    }
  }
  return total / (at.n_q * at.window);
}

struct NaiveCase {
  const char* model;
  const char* preset;
};

class NaiveMassTest : public ::testing::TestWithParam<NaiveCase> {};

TEST_P(NaiveMassTest, EveryLayerEqualsTheDefinition) {
  const RankedTestModel loaded =
      LoadRanked(SourcePath(std::string("tests/golden/models/") + GetParam().model), 1, DType::kF32);
  const RankedModel& model = *loaded.model;
  for (int n : {5, 90}) {  // fewer tokens than queries, and more
    SCOPED_TRACE(n);
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back((17 * i * i + 5 * i + 3) % model.shape().vocab);
    const ResolvedGates gates = GatesOf(model, n < 30 ? "full" : GetParam().preset, 48, n);
    Bench bench(model);
    const auto loss = bench.Measure(ids, gates);
    ASSERT_TRUE(loss.ok()) << loss.status();
    Capture capture;
    CollectingSink sink(&model.rank(0));
    auto pass =
        PrefillPass::Create(&model.rank(0), {{.ids = ids, .gates = {}, .sink = &sink, .observer = &capture}});
    ASSERT_TRUE(pass.ok()) << pass.status();
    while (!(*pass)->done()) ASSERT_TRUE((*pass)->RunLayer().ok());
    ASSERT_EQ(static_cast<int>(loss->retained_mass.size()), model.shape().n_layers);
    ASSERT_EQ(static_cast<int>(capture.layers.size()), model.shape().n_layers);
    for (int layer = 0; layer < model.shape().n_layers; ++layer) {
      const double naive = NaiveMass(capture.layers[layer], bench.kept.kept[layer], model.rank(0));
      EXPECT_NEAR(loss->retained_mass[layer], naive, TestDevice() == "cpu" ? 1e-5 : 2e-2)
          << "layer " << layer;
      // A sliding window may lie inside the window that snapkv keeps.
      if (n > 30 && capture.layers[layer].sliding == 0) {
        EXPECT_LT(naive, 0.999) << "nothing was dropped";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, NaiveMassTest,
                         ::testing::Values(NaiveCase{"qwen2-heads", "snapkv"},
                                           NaiveCase{"llama-yarn", "streaming_llm"},
                                           NaiveCase{"ministral-mixed", "snapkv"}),
                         [](const auto& info) {
                           std::string name = info.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LossMeasurement, FullKvKeepsAllMassAndAlwaysAgrees) {
  const std::vector<int32_t> ids = MakeNeedlePrompt(600, 0.4, 7).ids;
  Bench bench(Needle());
  const auto loss = bench.Measure(ids, {});
  ASSERT_TRUE(loss.ok()) << loss.status();
  for (float mass : loss->retained_mass) EXPECT_FLOAT_EQ(mass, 1);
  EXPECT_EQ(loss->top1_tokens, LossMeasurement::kTokens);
  EXPECT_EQ(loss->top1_agreed, loss->top1_tokens);
  EXPECT_EQ(loss->skipped, "");
}

TEST(LossMeasurement, TheEndsOfTextsKeepLessThanWhatTheWindowPoints) {
  const std::vector<int32_t> ids = MakeNeedlePrompt(1500, 0.4, 7).ids;
  const int n = static_cast<int>(ids.size());
  Bench bench(Needle());
  const auto ends = bench.Measure(ids, GatesOf(bench.model, "streaming_llm", 128, n));
  const auto points = bench.Measure(ids, GatesOf(bench.model, "rocketkv", 128, n));
  ASSERT_TRUE(ends.ok()) << ends.status();
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_LT(Mean(ends->retained_mass), Mean(points->retained_mass));
  // The answer is seven digits from the middle of the text.
  EXPECT_LT(ends->top1_agreed, ends->top1_tokens);
  EXPECT_EQ(points->top1_agreed, points->top1_tokens);
}

// Each measurement begins with both slots and every page free.
TEST(LossMeasurement, EveryPresetIsMeasuredAndGivesItsMemoryBack) {
  const std::vector<int32_t> ids = MakeNeedlePrompt(900, 0.4, 7).ids;
  const int n = static_cast<int>(ids.size());
  Bench bench(Needle(DType::kBF16));
  for (const Preset& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    const ResolvedGates gates = GatesOf(bench.model, preset.name, 128, n);
    const auto loss = bench.Measure(ids, gates);
    ASSERT_TRUE(loss.ok()) << loss.status();
    const bool renumbers = gates.propagation.kind == PropagationKind::kRerun;
    EXPECT_EQ(static_cast<int>(loss->retained_mass.size()), renumbers ? 0 : bench.model.shape().n_layers);
    for (float mass : loss->retained_mass) EXPECT_TRUE(mass > 0 && mass <= 1) << mass;
    EXPECT_GT(loss->top1_tokens, 0);
    EXPECT_LE(loss->top1_agreed, loss->top1_tokens);
    EXPECT_EQ(bench.cache->pages().used(), 0);
    EXPECT_EQ(bench.cache->chunks().used(), 0);
  }
}

TEST(LossMeasurement, SeveralRanksMeasureWhatOneDoes) {
  if (MostRanks() < 2) GTEST_SKIP() << "needs 2 GPUs";
  const RankedTestModel two = LoadRanked(SourcePath("models/needle-14m"), 2, DType::kF32);
  const std::vector<int32_t> ids = MakeNeedlePrompt(900, 0.4, 7).ids;
  const int n = static_cast<int>(ids.size());
  for (const char* preset : {"snapkv", "sluice"}) {
    SCOPED_TRACE(preset);
    Bench alone(Needle()), together(*two.model);
    const auto one = alone.Measure(ids, GatesOf(alone.model, preset, 128, n));
    const auto both = together.Measure(ids, GatesOf(together.model, preset, 128, n));
    ASSERT_TRUE(one.ok()) << one.status();
    ASSERT_TRUE(both.ok()) << both.status();
    ASSERT_EQ(both->retained_mass.size(), one->retained_mass.size());
    for (size_t layer = 0; layer < one->retained_mass.size(); ++layer)
      EXPECT_NEAR(both->retained_mass[layer], one->retained_mass[layer], TestDevice() == "cpu" ? 1e-3 : 3e-2);
    EXPECT_EQ(both->top1_tokens, one->top1_tokens);
    EXPECT_EQ(both->top1_agreed, one->top1_agreed);
  }
}

TEST(LossMeasurement, ACacheThatIsTooSmallSaysSoAndKeepsNothing) {
  Bench bench(Needle(), size_t{6} << 20);
  const auto loss = bench.Measure(MakeNeedlePrompt(1500, 0.4, 7).ids, {});
  EXPECT_TRUE(absl::IsResourceExhausted(loss.status())) << loss.status();
  EXPECT_EQ(bench.cache->pages().used(), 0);
}

TEST(LossMeasurement, APromptUpToTheLastTokenOfTheContextGetsOne) {
  const RankedTestModel loaded = LoadRanked(SourcePath("tests/golden/models/llama3"), 1, DType::kF32);
  const int n = loaded.model->shape().context - 1;
  std::vector<int32_t> ids(n);
  for (int i = 0; i < n; ++i) ids[i] = (31 * i + 1) % loaded.model->shape().vocab;
  Bench bench(*loaded.model);
  const auto loss = bench.Measure(ids, {});
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_LE(loss->top1_tokens, 1);
  EXPECT_EQ(loss->top1_agreed, loss->top1_tokens);
}

TEST(LossMeasurement, OneThatIsDroppedHalfWayHoldsNothing) {
  const std::vector<int32_t> ids = MakeNeedlePrompt(600, 0.4, 7).ids;
  Bench bench(Needle());
  auto kept = PrefillRanked(bench.model, ids, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  auto measurement =
      LossMeasurement::Begin(&bench.model, bench.cache.get(), bench.decode.get(), {ids, {}, &kept->kept});
  ASSERT_TRUE(measurement.ok()) << measurement.status();
  ASSERT_TRUE((*measurement)->Step().ok());
  EXPECT_FALSE((*measurement)->done());
  EXPECT_GT(bench.cache->pages().used(), 0);
  measurement->reset();
  EXPECT_EQ(bench.cache->pages().used(), 0);
}

}  // namespace
}  // namespace sluice
