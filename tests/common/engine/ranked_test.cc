// Several ranks say what one says. Sums over ranks add in another order than one rank does, so numbers agree
// within the rounding of f32; greedy tokens and, with f32 KV, the rows that gates keep agree exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/engine/warm_up.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/ranked_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using nlohmann::json;

#define SLUICE_NEED_RANKS(n) \
  if (MostRanks() < (n)) GTEST_SKIP() << "needs " << (n) << " GPUs"

TEST(Ranked, GreedyTokensAndLogitsOfTheBundledModel) {
  SLUICE_NEED_RANKS(2);
  const auto golden = json::parse(ReadFile(SourcePath("models/needle-14m/golden.json")));
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const RankedTestModel two = LoadRanked(SourcePath("models/needle-14m"), 2, dtype);
    for (const auto& prompt : golden["prompts"]) {
      SCOPED_TRACE(prompt["name"].get<std::string>() + (dtype == DType::kF32 ? ", f32 KV" : ", bf16 KV"));
      auto run = RunRanked(*two.model, prompt["ids"], {}, 32);
      ASSERT_TRUE(run.ok()) << run.status();
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(run->logits[0][prompt["top5_ids"][i]], prompt["top5_logits"][i].get<float>(),
                    LogitTolerance(dtype, BestCpuIsa()));
      }
      EXPECT_EQ(run->tokens, prompt["greedy_ids"].get<std::vector<int32_t>>());
    }
  }
}

struct TinyCase {
  const char* name;
  int ranks;
};

class RankedTiny : public ::testing::TestWithParam<TinyCase> {};

// Biases, norms, windows, rotary scalings, tied and untied heads, each split over ranks.
TEST_P(RankedTiny, DecodeLogitsAreThoseOfTransformers) {
  SLUICE_NEED_RANKS(GetParam().ranks);
  const std::string folder = SourcePath("tests/golden/models/") + GetParam().name;
  const auto golden = json::parse(ReadFile(folder + "/golden.json"));
  const RankedTestModel loaded = LoadRanked(folder, GetParam().ranks, DType::kF32);
  const std::vector<int32_t> greedy = golden["greedy_ids"];
  auto run = RunRanked(*loaded.model, golden["prompt_ids"], {}, static_cast<int>(greedy.size()), greedy);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->tokens, greedy);
  for (size_t step = 0; step < greedy.size(); ++step) {
    const std::vector<float> expected =
        step == 0 ? golden["prefill_logits"].back() : golden["decode_logits"][step - 1];
    float worst = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(run->logits[step][i] - expected[i]));
    EXPECT_LE(worst, LogitTolerance(DType::kF32, BestCpuIsa())) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RankedTiny,
                         ::testing::Values(TinyCase{"llama-yarn", 2}, TinyCase{"qwen3", 2},
                                           TinyCase{"ministral-mixed", 2}, TinyCase{"qwen2-heads", 2},
                                           TinyCase{"qwen2-heads", 4}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(info.param.ranks);
                         });

class RankedPreset : public ::testing::TestWithParam<const char*> {};

TEST_P(RankedPreset, KeepsTheSameRowsAndSaysTheSame) {
  SLUICE_NEED_RANKS(2);
  const NeedlePrompt prompt = MakeNeedlePrompt(1500, 0.4, 7);
  CompressionSpec spec;
  spec.preset = GetParam();
  if (spec.preset != "full") spec.budget_tokens = 128;
  spec.min_prompt_tokens = 0;
  const RankedTestModel one = LoadRanked(SourcePath("models/needle-14m"), 1, DType::kF32);
  const RankedTestModel two = LoadRanked(SourcePath("models/needle-14m"), 2, DType::kF32);
  auto gates = ResolveFor(one.model->shape(), spec, static_cast<int>(prompt.ids.size()), 32);
  ASSERT_TRUE(gates.ok()) << gates.status();
  // A GPU rounds activations: beyond the answer (nine tokens) the model is undecided, and texts may part.
  const int n = TestDevice() == "cpu" ? 16 : 9;
  auto alone = RunRanked(*one.model, prompt.ids, *gates, n);
  auto together = RunRanked(*two.model, prompt.ids, *gates, n);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(together->tokens, alone->tokens);
  for (int layer = 0; layer < one.model->shape().n_layers; ++layer) {
    const KeptLayer &a = alone->prompt.kept[layer], &b = together->prompt.kept[layer];
    ASSERT_EQ(a.kept, b.kept) << "layer " << layer;
    if (TestDevice() != "cpu") continue;  // scores that are close may change places
    for (int head = 0; head < one.model->shape().n_kv_heads; ++head) {
      EXPECT_EQ(KeptPositions(one.model->rank(0), a, head), KeptPositions(two.model->rank(0), b, head))
          << "layer " << layer << " head " << head;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, RankedPreset,
                         ::testing::Values("full", "snapkv", "streaming_llm", "h2o", "pyramidkv", "chunkkv",
                                           "fastkv", "gemfilter", "rocketkv", "rocketkv-mt", "sluice",
                                           "sluice-mt", "quest", "sparq", "exact_topk"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(RankedLoad, ANumberOfRanksThatDoesNotDivideTheHeadsSaysWhichDo) {
  auto files = OpenModel(SourcePath("models/needle-14m"));
  ASSERT_TRUE(files.ok()) << files.status();
  auto group = MakeBackendGroup("cpu", {}, 4);
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = RankedModel::Load(files->shape, files->weights, group->get(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "4 ranks do not divide the model's 2 KV heads and 1024 MLP columns; use 1, 2");
}

TEST(RankedWarmUp, LeavesTheModelAsItWas) {
  SLUICE_NEED_RANKS(2);
  for (int ranks : {1, 2}) {
    const RankedTestModel model = LoadRanked(SourcePath("models/needle-14m"), ranks);
    const std::vector<int32_t> ids = MakeNeedlePrompt(400, 0.4, 7).ids;
    auto cold = RunRanked(*model.model, ids, {}, 4);
    EXPECT_TRUE(WarmUpPrefill(*model.model).ok());
    auto warm = RunRanked(*model.model, ids, {}, 4);
    ASSERT_TRUE(cold.ok() && warm.ok());
    EXPECT_EQ(warm->logits, cold->logits);
  }
}

// A rank that fails takes the pass with it; the next one works.
TEST(RankedErrors, AFailedRankEndsThePassAndNotTheModel) {
  SLUICE_NEED_RANKS(2);
  class FailsOnce final : public RankedSink {
   public:
    bool wants_new_rows() const override { return true; }
    absl::Status OnNewRows(int rank, LayerId layer, TensorView, TensorView, Ops&) override {
      if (rank == 1 && layer.value() == 2) return absl::ResourceExhaustedError("no memory on rank 1");
      return absl::OkStatus();
    }
    absl::Status OnKept(LayerId, KeptLayer) override { return absl::OkStatus(); }
  };
  const RankedTestModel two = LoadRanked(SourcePath("models/needle-14m"), 2);
  const std::vector<int32_t> ids = MakeNeedlePrompt(400, 0.4, 7).ids;
  auto before = RunRanked(*two.model, ids, {}, 4);
  ASSERT_TRUE(before.ok()) << before.status();

  FailsOnce sink, other_sink;
  auto pass = RankedPrefill::Create(two.model.get(), {{.ids = ids, .gates = {}, .sink = &sink}});
  auto other = RankedPrefill::Create(two.model.get(), {{.ids = ids, .gates = {}, .sink = &other_sink}});
  ASSERT_TRUE(pass.ok() && other.ok());
  EXPECT_TRUE((*other)->RunLayer().ok());
  absl::Status status;
  while (status.ok() && !(*pass)->done()) status = (*pass)->RunLayer();
  EXPECT_EQ(status, absl::ResourceExhaustedError("no memory on rank 1"));
  // It had sums under way, which may have been cut off.
  EXPECT_EQ((*other)->RunLayer().code(), absl::StatusCode::kAborted);

  auto after = RunRanked(*two.model, ids, {}, 4);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->logits, before->logits);
}

}  // namespace
}  // namespace sluice
