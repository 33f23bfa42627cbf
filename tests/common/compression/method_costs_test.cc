// What methods are said to cost, against what their numbers mean.
#include "common/compression/method_costs.h"

#include "common/compression/compression_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

constexpr int kPrompt = 16384, kBudget = 1024;
constexpr KvShape kShape = {.n_layers = 32, .n_q_heads = 32, .n_kv_heads = 8, .head_dim = 128};
constexpr double kRow = 512, kHeads = 32 * 8;  // K,V of a row in bf16; rows of a token

ResolvedGates Resolve(const CompressionSpec& spec) {
  GateContext context;
  context.prompt_tokens = context.turn_tokens = kPrompt;
  context.max_tokens = 128;
  context.context = 131072;
  context.head_dim = kShape.head_dim;
  context.n_layers = kShape.n_layers;
  context.n_kv_heads = kShape.n_kv_heads;
  context.tsp_layer = 15;
  auto gates = ResolveGates(spec, context, nullptr);
  EXPECT_TRUE(gates.ok()) << gates.status();
  return gates.ok() ? *gates : ResolvedGates();
}

MethodCosts Costs(const char* preset) {
  CompressionSpec spec;
  spec.preset = preset;
  spec.budget_tokens = kBudget;
  return CostsOf(Resolve(spec), kShape, kPrompt);
}

TEST(MethodCostsTest, FullStoresSendsAndReadsEverything) {
  const MethodCosts costs = Costs("full");
  EXPECT_EQ(costs.full_bytes, 2048.0 * (1 << 20));  // 128 KiB a token
  EXPECT_EQ(costs.stored_bytes, costs.full_bytes);
  EXPECT_EQ(costs.read_bytes, costs.full_bytes);
  EXPECT_EQ(costs.wire_bytes, costs.full_bytes + 4 * kHeads * kPrompt);
  EXPECT_EQ(costs.kept_rows, kPrompt);
  EXPECT_EQ(costs.prefill_share, 1);
}

TEST(MethodCostsTest, WithoutSelectionTheBudgetIsKeptAndRead) {
  for (const char* preset : {"snapkv", "streaming_llm", "h2o", "pyramidkv", "adakv", "chunkkv"}) {
    SCOPED_TRACE(preset);
    const MethodCosts costs = Costs(preset);
    EXPECT_NEAR(costs.kept_rows, kBudget, 1e-6);
    EXPECT_NEAR(costs.stored_bytes, kHeads * kRow * kBudget, 1);
    EXPECT_NEAR(costs.read_bytes, kHeads * kRow * kBudget, 1);
    EXPECT_NEAR(costs.wire_bytes, kHeads * (kRow + 4) * kBudget, 1);
    EXPECT_EQ(costs.prefill_share, 1);
  }
}

// What a budget means there: half of it is read to score, half to attend, whatever the page is.
TEST(MethodCostsTest, RocketKvReadsItsBudget) {
  for (int budget : {256, 512, 1024, 2048}) {
    CompressionSpec spec;
    spec.preset = "rocketkv";
    spec.budget_tokens = budget;
    const ResolvedGates gates = Resolve(spec);
    const MethodCosts costs = CostsOf(gates, kShape, kPrompt);
    EXPECT_EQ(costs.kept_rows, gates.retention.budget);
    // The prompt's share of the cap: the rest is room for the answer.
    EXPECT_LE(costs.read_bytes / (kHeads * kRow), budget);
    EXPECT_GE(costs.read_bytes / (kHeads * kRow), 0.93 * budget);
    const double side = costs.stored_bytes / (kHeads * kRow) - costs.kept_rows;
    EXPECT_NEAR(side, costs.kept_rows / gates.selection.page * (gates.selection.page > 1 ? 1 : 0.5), 1);
  }
}

TEST(MethodCostsTest, PropagationSavesPrefill) {
  // 16 layers of all rows, 16 of a fifth.
  EXPECT_NEAR(Costs("fastkv").prefill_share, 0.6, 1e-4);
  EXPECT_NEAR(Costs("sluice").prefill_share, 0.6, 1e-4);
  // 16 layers of all rows, then 32 of the budget's.
  const MethodCosts costs = Costs("gemfilter");
  EXPECT_NEAR(costs.prefill_share, 0.5 + 1024.0 / kPrompt, 1e-9);
  EXPECT_EQ(costs.stored_bytes, kHeads * kRow * kBudget);
  EXPECT_EQ(costs.full_bytes, kHeads * kRow * kPrompt);
}

TEST(MethodCostsTest, WithoutRetentionLaterLayersKeepWhatTheyGot) {
  CompressionSpec spec;
  spec.propagation = PropagationKind::kTsp;
  const ResolvedGates gates = Resolve(spec);
  const MethodCosts costs = CostsOf(gates, kShape, kPrompt);
  EXPECT_EQ(costs.kept_rows, (kPrompt + 3276) / 2.0);
  EXPECT_EQ(FormulasOf(gates).kept, "n; behind the tsp layer rate n");
}

// Everything is kept; a step reads its budget, and what it scores to choose.
TEST(MethodCostsTest, SelectionsOfEverything) {
  const double all = kHeads * kRow * kPrompt;
  // Per page a minimum and a maximum, of which one is read; two layers of 32 are read whole.
  EXPECT_NEAR(Costs("quest").stored_bytes, all * 17 / 16, 1);
  EXPECT_NEAR(Costs("quest").read_bytes, all * 2 / 32 + kHeads * kRow * 30 / 32 * (kPrompt / 32 + kBudget),
              1);
  // Keys a second time, 16 of 128 channels of which are read; one row for the mean of the values.
  EXPECT_NEAR(Costs("sparq").stored_bytes, all * 1.5 + kHeads * kRow, 1);
  EXPECT_NEAR(Costs("sparq").read_bytes, kHeads * kRow * (kPrompt / 16 + kBudget + 1), 1);
  EXPECT_NEAR(Costs("exact_topk").stored_bytes, all, 1);
  EXPECT_NEAR(Costs("exact_topk").read_bytes, kHeads * kRow * (kPrompt / 2 + kBudget), 1);
  for (const char* preset : {"quest", "sparq", "exact_topk"}) EXPECT_EQ(Costs(preset).kept_rows, kPrompt);
}

TEST(MethodCostsTest, EveryPresetHasFormulas) {
  for (const Preset& preset : Presets()) {
    const MethodFormulas formulas = FormulasOf(KindsOf(preset.spec));
    for (const std::string* text : {&formulas.prefill, &formulas.kept, &formulas.stored, &formulas.read})
      EXPECT_FALSE(text->empty()) << preset.name;
  }
}

}  // namespace
}  // namespace sluice
