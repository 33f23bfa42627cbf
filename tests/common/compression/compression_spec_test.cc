// What a request's compression resolves to, and what is refused.
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/gate_requests.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ResolveGatesTest, TheDefaultIsFull) {
  const ResolvedGates gates = Resolve({});
  EXPECT_EQ(gates.method, "full");
  EXPECT_EQ(gates, Resolve(Named("full")));
  EXPECT_EQ(gates.propagation.kind, PropagationKind::kNone);
  EXPECT_EQ(gates.retention.kind, RetentionKind::kFull);
  EXPECT_EQ(gates.selection.kind, SelectionKind::kDense);
  EXPECT_EQ(gates.history, HistoryKind::kKeep);
  EXPECT_EQ(gates.budget_tokens, 0);
  EXPECT_EQ(gates.off_reason, "");
}

TEST(ResolveGatesTest, PresetsAreWhatTheirNamesSay) {
  const Pooling max7 = {.kind = Pooling::kMax, .kernel = 7}, max63 = {.kind = Pooling::kMax, .kernel = 63};
  const Pooling fading = {.kind = Pooling::kFading, .kernel = 1, .after = 16, .before = 4};
  const RocketSplit split = SplitBudget(16384, 128, 1024, 32768, 128);
  const RetentionGate rocket = {.kind = RetentionKind::kSnapKv,
                                .budget = split.prompt_budget,
                                .observation = {.window = 32, .pooling = max63}};

  ResolvedGates want;
  want.budget_tokens = 1024;
  want.method = "snapkv";
  want.retention = {
      .kind = RetentionKind::kSnapKv, .budget = 1024, .observation = {.window = 32, .pooling = max7}};
  EXPECT_EQ(Resolve(Named("snapkv")), want);
  want.method = "streaming_llm";
  want.retention = {.kind = RetentionKind::kStreamingLlm, .budget = 1024, .sinks = 4, .observation = {}};
  EXPECT_EQ(Resolve(Named("streaming_llm")), want);
  want.method = "h2o";
  want.retention = {.kind = RetentionKind::kH2o, .budget = 1024, .recent = 512, .observation = {}};
  want.retention.observation.window = 16384;  // every query of the turn
  EXPECT_EQ(Resolve(Named("h2o")), want);
  want.method = "chunkkv";
  want.retention = {.kind = RetentionKind::kChunkKv, .budget = 1024, .chunk = 10, .observation = {}};
  want.retention.observation = {.window = 32, .pooling = {.kind = Pooling::kMax, .kernel = 15}};
  EXPECT_EQ(Resolve(Named("chunkkv")), want);
  want.method = "adakv";
  want.retention = {.kind = RetentionKind::kAdaKv, .budget = 1024, .floor = 0.2f, .observation = {}};
  want.retention.most = 32 + 6548;  // 0.8 of the 992 rows of 8 heads, and 0.2 of its own 992
  want.retention.observation = {.window = 32, .pooling = max7};
  EXPECT_EQ(Resolve(Named("adakv")), want);
  want.method = "fastkv";
  want.retention = {.kind = RetentionKind::kSnapKv, .budget = 1024, .observation = {}};
  want.retention.observation = {.window = 8, .pooling = max7, .pool_per_head = true};
  want.propagation = {.kind = PropagationKind::kTsp, .layer = 15, .rows = 3276, .observation = {}};
  want.propagation.observation = want.retention.observation;
  EXPECT_EQ(Resolve(Named("fastkv")), want);
  want.method = "gemfilter";
  want.retention = {};
  want.propagation = {.kind = PropagationKind::kRerun, .layer = 15, .rows = 1024, .observation = {}};
  want.propagation.observation = {.window = 32, .pooling = {.kind = Pooling::kMax, .kernel = 15}};
  EXPECT_EQ(Resolve(Named("gemfilter")), want);
  want.propagation = {};
  want.method = "rocketkv";
  want.retention = rocket;
  want.selection = split.selection;
  EXPECT_EQ(Resolve(Named("rocketkv")), want);
  want.method = "rocketkv-mt";
  want.history = HistoryKind::kKeep;
  EXPECT_EQ(Resolve(Named("rocketkv-mt")), want);
  want.method = "sluice-mt";
  want.retention.observation.pooling = fading;
  EXPECT_EQ(Resolve(Named("sluice-mt")), want);
  want.method = "sluice";
  want.history = HistoryKind::kEvict;
  want.propagation = {.kind = PropagationKind::kTsp,
                      .layer = 15,
                      .rows = 3276,
                      .observation = {.window = 32, .pooling = fading}};
  EXPECT_EQ(Resolve(Named("sluice")), want);
  EXPECT_EQ(Presets().size(), 16u);
}

int PyramidRows(const RetentionGate& gate, int layer) {
  return gate.top - layer * gate.step - (layer < gate.shorter ? 1 : 0);
}

TEST(ResolveGatesTest, APyramidFallsAndSumsToItsBudget) {
  for (int n_layers : {1, 2, 6, 31, 32}) {
    for (int prompt : {500, 1024, 1100, 4096, 16384}) {
      for (int budget : {64, 100, 512}) {
        if (prompt < 2 * budget) continue;
        GateContext context = LongPrompt();
        context.n_layers = n_layers;
        context.tsp_layer.reset();
        context.prompt_tokens = context.turn_tokens = prompt;
        CompressionSpec spec = Named("pyramidkv");
        spec.budget_tokens = budget;
        const RetentionGate gate = Resolve(spec, context).retention;
        int sum = 0;
        for (int layer = 0; layer < n_layers; ++layer) {
          const int rows = PyramidRows(gate, layer);
          sum += rows;
          EXPECT_GE(rows, 8);  // the window
          EXPECT_LE(rows, prompt);
          if (layer > 0) {
            EXPECT_LE(rows, PyramidRows(gate, layer - 1) + 1);
          }
        }
        EXPECT_EQ(sum, n_layers * budget) << n_layers << " layers, prompt " << prompt;
      }
    }
  }
}

// The paper's code at n = 4096, capacity 64, 32 layers: 112 - 2 = 110 rows fall by 3 a layer, and exceed the
// capacity by 7.5 rows on average; the steps stay, what is too much goes back.
TEST(ResolveGatesTest, APyramidHasThePapersSteps) {
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 4096;
  CompressionSpec spec = Named("pyramidkv");
  spec.budget_tokens = 64;
  const RetentionGate gate = Resolve(spec, context).retention;
  EXPECT_EQ(gate.step, 3);
  EXPECT_EQ(gate.top, 8 + 110 - 7);
  EXPECT_EQ(gate.shorter, 16);
}

TEST(ResolveGatesTest, ParametersOfMethodsArriveAndAreChecked) {
  CompressionSpec spec = Named("chunkkv");
  spec.chunk = 20;
  spec.reuse = 2;
  spec.round_weights = true;
  RetentionGate gate = Resolve(spec).retention;
  EXPECT_EQ(gate.chunk, 20);
  EXPECT_EQ(gate.reuse, 2);
  EXPECT_TRUE(gate.observation.round_weights);
  spec.chunk = 0;
  EXPECT_THAT(Refusal(spec), HasSubstr("chunk 0"));
  spec.chunk = 1;
  spec.reuse = 33;
  EXPECT_THAT(Refusal(spec), HasSubstr("reuse 33"));
  spec = Named("adakv");
  spec.head_floor = 1;
  EXPECT_EQ(Resolve(spec).retention.most, 1024);  // all heads alike
  spec.head_floor = -0.1;
  EXPECT_THAT(Refusal(spec), HasSubstr("head_floor -0.1"));
  spec = Named("chunkkv");
  EXPECT_FALSE(Resolve(spec).retention.one_set);
  spec.one_set = true;
  EXPECT_TRUE(Resolve(spec).retention.one_set);
}

TEST(ResolveGatesTest, RerunTakesTheBudgetOrARate) {
  CompressionSpec spec = Named("gemfilter");
  spec.budget_tokens = 300;
  ResolvedGates gates = Resolve(spec);
  EXPECT_EQ(gates.propagation.rows, 300);
  EXPECT_EQ(gates.budget_tokens, 300);
  spec.tsp_rate = 0.25;
  EXPECT_EQ(Resolve(spec).propagation.rows, 4096);
  // What the later gates see is the shorter prompt.
  spec.selection = SelectionKind::kHsa;
  EXPECT_EQ(Resolve(spec).selection, SplitHsa(4096 + 128, 300, 128));
  spec.retention = RetentionKind::kSnapKv;
  EXPECT_EQ(Resolve(spec).retention.budget, SplitBudget(4096, 128, 300, 32768, 128).prompt_budget);
}

TEST(ResolveGatesTest, RawScoresAreOfRerunAndDoNotFade) {
  CompressionSpec spec = Named("gemfilter");
  spec.raw_scores = true;
  spec.window = 1;
  spec.pooling = Pooling{.kind = Pooling::kAvg, .kernel = 5};
  EXPECT_TRUE(Resolve(spec).propagation.observation.raw);
  spec.pooling = Pooling{.kind = Pooling::kFading};
  EXPECT_THAT(Refusal(spec), HasSubstr("cannot fade"));
  spec = Named("fastkv");
  spec.raw_scores = true;
  EXPECT_THAT(Refusal(spec), HasSubstr("raw_scores ranks the rows of rerun only"));
}

TEST(ResolveGatesTest, AnUnknownPresetListsTheNames) {
  const std::string refusal = Refusal(Named("rocket"));
  EXPECT_THAT(refusal, HasSubstr("unknown preset \"rocket\"; known are full, snapkv, streaming_llm, "));
  for (const Preset& preset : Presets()) EXPECT_THAT(refusal, HasSubstr(preset.name));
}

TEST(ResolveGatesTest, OverriddenKindsAreCustomOverriddenNumbersAreNot) {
  CompressionSpec spec = Named("rocketkv");
  spec.pooling = Pooling{.kind = Pooling::kFading};
  spec.budget_tokens = 256;
  EXPECT_EQ(Resolve(spec).method, "rocketkv");
  EXPECT_EQ(Resolve(spec).retention.observation.pooling, *spec.pooling);
  spec.selection = SelectionKind::kDense;
  EXPECT_EQ(Resolve(spec).method, "custom");
  EXPECT_EQ(Resolve(spec).retention.budget, 256);
}

TEST(ResolveGatesTest, GatesOneByOne) {
  CompressionSpec spec;
  spec.propagation = PropagationKind::kTsp;
  ResolvedGates gates = Resolve(spec);
  EXPECT_EQ(gates.method, "custom");
  EXPECT_EQ(gates.history, HistoryKind::kEvict);  // asked for propagation, not for history
  EXPECT_EQ(gates.propagation.rows, 3276);
  EXPECT_EQ(gates.budget_tokens, 0);

  spec = {};
  spec.selection = SelectionKind::kHsa;  // over the full cache
  gates = Resolve(spec);
  EXPECT_EQ(gates.retention, RetentionGate{});
  EXPECT_EQ(gates.selection, SplitHsa(16384 + 128, 1024, 128));
  EXPECT_EQ(gates.budget_tokens, 1024);

  spec.retention = RetentionKind::kStreamingLlm;
  gates = Resolve(spec);
  EXPECT_EQ(gates.retention.budget, SplitBudget(16384, 128, 1024, 32768, 128).prompt_budget);
  EXPECT_EQ(gates.retention.sinks, 4);
}

TEST(ResolveGatesTest, BadFieldsAreNamed) {
  const auto refuse = [](auto set) {
    CompressionSpec spec = Named("sluice");
    set(spec);
    return Refusal(spec);
  };
  EXPECT_THAT(refuse([](auto& s) { s.budget_tokens = 15; }), HasSubstr("budget_tokens 15 is below 16"));
  EXPECT_THAT(refuse([](auto& s) { s.keep_ratio = 0; }), HasSubstr("keep_ratio 0 "));
  EXPECT_THAT(refuse([](auto& s) { s.keep_ratio = 1.5; }), HasSubstr("keep_ratio 1.5"));
  EXPECT_THAT(refuse([](auto& s) { s.keep_ratio = std::nan(""); }), HasSubstr("keep_ratio"));
  EXPECT_THAT(refuse([](auto& s) { s.keep_ratio = .5, s.budget_tokens = 64; }),
              HasSubstr("exclude each other"));
  EXPECT_THAT(refuse([](auto& s) { s.tsp_rate = 0; }), HasSubstr("tsp rate 0"));
  EXPECT_THAT(refuse([](auto& s) { s.tsp_layer = 31; }), HasSubstr("tsp layer 31"));
  EXPECT_THAT(refuse([](auto& s) { s.tsp_layer = -1; }), HasSubstr("tsp layer -1"));
  EXPECT_THAT(refuse([](auto& s) { s.window = 0; }), HasSubstr("window 0"));
  EXPECT_THAT(refuse([](auto& s) { s.window = 2000; }), HasSubstr("window 2000"));
  EXPECT_THAT(refuse([](auto& s) { s.min_prompt_tokens = -1; }), HasSubstr("min_prompt_tokens -1"));
  EXPECT_THAT(refuse([](auto& s) { s.split_max_tokens = 0; }), HasSubstr("split max_tokens 0"));
  EXPECT_THAT(refuse([](auto& s) { s.pooling = Pooling{.kernel = 4}; }), HasSubstr("kernel 4"));
  EXPECT_THAT(refuse([](auto& s) { s.pooling = Pooling{.kind = Pooling::kFading, .after = 0}; }),
              HasSubstr("reach 0"));
  EXPECT_THAT(refuse([](auto& s) { s.pooling = Pooling{.kind = Pooling::kFading, .before = 1e9f}; }),
              HasSubstr("reach 1e+09"));
  GateContext empty = LongPrompt();
  empty.prompt_tokens = empty.turn_tokens = 0;
  EXPECT_THAT(Refusal(Named("sluice"), empty), HasSubstr("prompt is empty"));
}

TEST(ResolveGatesTest, WithoutSelectionTheBudgetMustExceedTheWindow) {
  CompressionSpec spec = Named("snapkv");
  spec.budget_tokens = 32;
  EXPECT_THAT(Refusal(spec), AllOf(HasSubstr("budget_tokens 32"), HasSubstr("window of 32")));
  spec.budget_tokens = 33;
  EXPECT_EQ(Resolve(spec).retention.budget, 33);
  spec = Named("streaming_llm");
  spec.budget_tokens = 16;
  EXPECT_EQ(Resolve(spec).retention.budget, 16);
  spec = Named("rocketkv");  // reads 16 of the rows that stage one kept
  spec.budget_tokens = 16;
  EXPECT_EQ(Resolve(spec).selection.tokens, 8);
}

TEST(ResolveGatesTest, KeepRatioIsAShareOfThePrompt) {
  CompressionSpec spec = Named("snapkv");
  spec.keep_ratio = 0.1;
  EXPECT_EQ(Resolve(spec).retention.budget, 1638);
  EXPECT_EQ(Resolve(spec).budget_tokens, 1638);
  spec.min_prompt_tokens = 0;
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 100;
  EXPECT_EQ(Resolve(spec, context).retention.budget, 33);  // ten rows would not hold the window
}

TEST(ResolveGatesTest, ShortPromptsTurnEverythingOff) {
  CompressionSpec spec = Named("sluice");
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 2047;
  ResolvedGates off;
  off.method = "sluice";
  off.off_causes = {OffCause::kShortPrompt};
  off.off_reason = "everything is off: the prompt of 2047 tokens is below min_prompt_tokens 2048";
  EXPECT_EQ(Resolve(spec, context), off);
  context.prompt_tokens = 2048;
  EXPECT_EQ(Resolve(spec, context).off_reason, "");
  spec.min_prompt_tokens = 5000;
  EXPECT_THAT(Resolve(spec, context).off_reason, HasSubstr("5000"));
  // What a session remembers does not depend on the length of a turn.
  spec.preset = "sluice-mt";
  EXPECT_EQ(Resolve(spec, context).history, HistoryKind::kKeep);
}

TEST(ResolveGatesTest, TheWindowIsCutToTheTurn) {
  GateContext context = LongPrompt();
  context.turn_tokens = 5;
  const ResolvedGates gates = Resolve(Named("sluice"), context);
  EXPECT_EQ(gates.retention.observation.window, 5);
  EXPECT_EQ(gates.propagation.observation.window, 5);
  EXPECT_EQ(Resolve(Named("streaming_llm"), context).retention.observation.window, 0);
}

TEST(ResolveGatesTest, TheWindowIsKeptWhereTheSplitLeavesLess) {
  CompressionSpec spec = Named("rocketkv");
  spec.min_prompt_tokens = 0;
  spec.window = 200;
  spec.split_max_tokens = 5;
  spec.budget_tokens = 16;
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 5000;
  ASSERT_LT(SplitBudget(5000, 5, 16, 32768, 128).prompt_budget, 200);
  EXPECT_EQ(Resolve(spec, context).retention.budget, 200);
  EXPECT_EQ(Resolve(spec, context).retention.observation.window, 200);
}

TEST(ResolveGatesTest, TspRowsHoldAtLeastTheWindow) {
  CompressionSpec spec = Named("sluice");
  spec.min_prompt_tokens = 0;
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 100;
  EXPECT_EQ(Resolve(spec, context).propagation.rows, 32);
  spec.tsp_rate = 1;
  EXPECT_EQ(Resolve(spec, context).propagation.rows, 100);  // all of them: never asked
}

TEST(ResolveGatesTest, TspNeedsALayer) {
  GateContext context = LongPrompt();
  context.tsp_layer.reset();
  CompressionSpec spec = Named("sluice");
  ResolvedGates gates = Resolve(spec, context);
  EXPECT_EQ(gates.propagation, PropagationGate{});
  EXPECT_THAT(gates.off_reason, HasSubstr("layer is unknown"));
  EXPECT_THAT(gates.off_causes, ElementsAre(OffCause::kUnknownLayer));
  EXPECT_EQ(gates.retention.kind, RetentionKind::kSnapKv);
  EXPECT_EQ(gates.method, "sluice");
  spec.tsp_layer = 7;
  gates = Resolve(spec, context);
  EXPECT_EQ(gates.propagation.layer, 7);
  EXPECT_EQ(gates.off_reason, "");
}

TEST(ResolveGatesTest, HsaIsNotServedWithSlidingWindows) {
  GateContext context = LongPrompt();
  context.sliding_window = true;
  EXPECT_THAT(Refusal(Named("rocketkv"), context), HasSubstr("sliding-window"));
  CompressionSpec spec = Named("rocketkv");
  spec.fallback_full = true;
  const ResolvedGates gates = Resolve(spec, context);
  EXPECT_EQ(gates.selection, SelectionGate{});
  EXPECT_EQ(gates.retention.budget, 1024);  // dense reads what is kept: the budget bounds that now
  EXPECT_THAT(gates.off_reason, HasSubstr("hsa is not served"));
  EXPECT_EQ(gates.method, "rocketkv");
  EXPECT_EQ(Resolve(Named("snapkv"), context).off_reason, "");
}

TEST(ResolveGatesTest, DenseIsPreferredWhereFewRowsWouldBeSaved) {
  CompressionSpec spec = Named("rocketkv");
  GateContext context = LongPrompt();
  const ResolvedGates sparse = Resolve(spec, context);
  const int saved = sparse.retention.budget - 1024;
  ASSERT_GT(saved, 0);
  context.hsa_pays_from = saved + 1;
  EXPECT_EQ(Resolve(spec, context), sparse);  // only on request
  spec.dense_if_faster = true;
  ResolvedGates dense = Resolve(spec, context);
  EXPECT_EQ(dense.selection, SelectionGate{});
  EXPECT_EQ(dense.retention, sparse.retention);
  EXPECT_EQ(dense.budget_tokens, 1024);
  EXPECT_EQ(dense.method, "rocketkv");
  EXPECT_THAT(dense.off_causes, ElementsAre(OffCause::kDenseIsFaster));
  EXPECT_THAT(dense.off_reason, HasSubstr("faster"));
  context.hsa_pays_from = saved;
  EXPECT_EQ(Resolve(spec, context), sparse);
  // Without stage one every row of the prompt is kept.
  spec.retention = RetentionKind::kFull;
  context.hsa_pays_from = context.prompt_tokens - 1024;
  EXPECT_EQ(Resolve(spec, context).selection.kind, SelectionKind::kHsa);
  ++context.hsa_pays_from;
  dense = Resolve(spec, context);
  EXPECT_EQ(dense.selection.kind, SelectionKind::kDense);
  EXPECT_EQ(dense.budget_tokens, 0);  // nothing is left that has one
}

TEST(ResolveGatesTest, SeveralReasonsAreAllTold) {
  GateContext context = LongPrompt();
  context.sliding_window = true;
  context.tsp_layer.reset();
  CompressionSpec spec = Named("sluice");
  spec.fallback_full = true;
  EXPECT_THAT(Resolve(spec, context).off_reason,
              AllOf(HasSubstr("hsa is not served"), HasSubstr("; "), HasSubstr("layer is unknown")));
  EXPECT_THAT(Resolve(spec, context).off_causes,
              ElementsAre(OffCause::kSlidingWindow, OffCause::kUnknownLayer));
  // A prompt that is too short has no gate left that could be off for another reason.
  context.prompt_tokens = context.turn_tokens = 100;
  EXPECT_THAT(Resolve(spec, context).off_causes, ElementsAre(OffCause::kShortPrompt));
}

// The identity setting of rocketkv: it keeps every row and reads every row.
TEST(ResolveGatesTest, RocketKvWithTwiceTheBudgetIsFull) {
  CompressionSpec spec = Named("rocketkv");
  spec.min_prompt_tokens = 0;
  GateContext context = LongPrompt();
  for (int prompt : {1, 40, 500, 8000}) {
    for (int max_tokens : {1, 16, 128, 600}) {
      context.prompt_tokens = context.turn_tokens = prompt;
      context.max_tokens = max_tokens;
      spec.budget_tokens = std::max(16, 2 * (prompt + max_tokens));
      const ResolvedGates gates = Resolve(spec, context);
      EXPECT_GE(gates.retention.budget, prompt);
      EXPECT_GE(gates.selection.tokens, prompt + max_tokens);
      EXPECT_EQ(gates.selection.page, 1);
      EXPECT_EQ(gates.selection.channels, 128);
    }
  }
}

TEST(ResolveGatesTest, TheSplitReservesAtMost128TokensForTheAnswer) {
  GateContext context = LongPrompt();
  context.max_tokens = 10000;
  EXPECT_EQ(Resolve(Named("rocketkv"), context), Resolve(Named("rocketkv")));
  context.max_tokens = 32;
  const int want = SplitBudget(16384, 32, 1024, 32768, 128).prompt_budget;
  EXPECT_EQ(Resolve(Named("rocketkv"), context).retention.budget, want);
  CompressionSpec spec = Named("rocketkv");
  spec.split_max_tokens = 32;
  EXPECT_EQ(Resolve(spec).retention.budget, want);
}

}  // namespace
}  // namespace sluice
