// What the turns of a conversation resolve to, given the turns before.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/gate_requests.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Nothing of a rerun is remembered, so that a later turn begins like a first one.
TEST(ResolveGatesTest, RerunServesEveryTurn) {
  const ResolvedGates first = Resolve(Named("gemfilter"));
  GateContext context = LongPrompt();
  context.prompt_tokens = 20000;
  context.turn_tokens = 20;
  const ResolvedGates second = Resolve(Named("gemfilter"), context, &first);
  EXPECT_EQ(second.propagation.kind, PropagationKind::kRerun);
  EXPECT_EQ(second.propagation.rows, 1024);
  EXPECT_EQ(second.propagation.observation.window, 20);
  EXPECT_EQ(second.off_reason, "");
}

TEST(ResolveGatesTest, AKeptHistoryForbidsPropagationUnlessASubsetWillDo) {
  CompressionSpec spec = Named("sluice");
  spec.history = HistoryKind::kKeep;
  EXPECT_EQ(Resolve(spec).propagation.kind, PropagationKind::kNone);
  EXPECT_THAT(Resolve(spec).off_reason, HasSubstr("history=keep"));
  EXPECT_THAT(Resolve(spec).off_causes, ElementsAre(OffCause::kHistoryKeep));
  spec.subset_coverage = true;
  EXPECT_EQ(Resolve(spec).propagation.kind, PropagationKind::kTsp);
  EXPECT_EQ(Resolve(spec).off_reason, "");
}

TEST(ResolveGatesTest, AnEvictedHistoryStaysDenseOnceItWas) {
  CompressionSpec spec = Named("rocketkv");
  spec.dense_if_faster = true;
  GateContext context = LongPrompt();
  context.hsa_pays_from = 1 << 20;
  const ResolvedGates first = Resolve(spec, context);
  ASSERT_THAT(first.off_causes, ElementsAre(OffCause::kDenseIsFaster));
  context.prompt_tokens += 5000;
  context.turn_tokens = 5000;
  context.hsa_pays_from = 0;
  ResolvedGates second = Resolve(spec, context, &first);
  EXPECT_EQ(second.retention, first.retention);
  EXPECT_EQ(second.selection, first.selection);
  EXPECT_EQ(second.budget_tokens, first.budget_tokens);
  EXPECT_THAT(second.off_causes, ElementsAre(OffCause::kDenseIsFaster));
  // Other numbers are those of the method, and its selection stays off.
  spec.retention = RetentionKind::kStreamingLlm;
  second = Resolve(spec, context, &first);
  EXPECT_GT(second.retention.budget, kDefaultBudgetTokens);
  EXPECT_EQ(second.selection, SelectionGate{});
  EXPECT_THAT(second.off_causes, ElementsAre(OffCause::kDenseIsFaster));
  // A request that does not ask for it gets what it asks for.
  spec = Named("rocketkv");
  EXPECT_EQ(Resolve(spec, context, &first).selection.kind, SelectionKind::kHsa);
}

TEST(ResolveGatesTest, AnEvictedHistoryStaysSparseOnceItWas) {
  CompressionSpec spec = Named("rocketkv");
  spec.dense_if_faster = true;
  GateContext context = LongPrompt();
  context.hsa_pays_from = 0;
  const ResolvedGates first = Resolve(spec, context);
  ASSERT_EQ(first.selection.kind, SelectionKind::kHsa);
  context.prompt_tokens += 5000;
  context.turn_tokens = 5000;
  context.hsa_pays_from = 1 << 20;
  const ResolvedGates second = Resolve(spec, context, &first);
  EXPECT_EQ(second.selection, first.selection);
  EXPECT_TRUE(second.off_causes.empty());
}

TEST(ResolveGatesTest, AnEvictedHistoryKeepsTurnOnesNumbersButItsOwnWindow) {
  const ResolvedGates first = Resolve(Named("sluice"));
  GateContext context = LongPrompt();
  context.prompt_tokens = 20000;
  context.turn_tokens = 20;
  const ResolvedGates second = Resolve(Named("sluice"), context, &first);
  EXPECT_EQ(second.selection, first.selection);
  EXPECT_EQ(second.retention.budget, first.retention.budget);
  EXPECT_EQ(second.retention.observation.pooling, first.retention.observation.pooling);
  EXPECT_EQ(second.retention.observation.window, 20);
  EXPECT_EQ(second.budget_tokens, first.budget_tokens);
  EXPECT_EQ(second.propagation, PropagationGate{});
  EXPECT_THAT(second.off_reason, HasSubstr("first turn"));
  EXPECT_THAT(second.off_causes, ElementsAre(OffCause::kLaterTurn));

  ResolvedGates kept = first;
  kept.retention.budget = 100;
  EXPECT_EQ(Resolve(Named("rocketkv"), context, &kept).retention.budget, 100);
}

TEST(ResolveGatesTest, AKeptHistoryIsSplitAnewEachTurn) {
  const ResolvedGates first = Resolve(Named("rocketkv-mt"));
  GateContext context = LongPrompt();
  context.prompt_tokens = 20000;
  context.turn_tokens = 50;
  EXPECT_EQ(Resolve(Named("rocketkv-mt"), context, &first).retention.budget,
            SplitBudget(20000, 128, 1024, 32768, 128).prompt_budget);
}

TEST(ResolveGatesTest, AFirstTurnThatWasTooShortSetsNoNumbers) {
  GateContext context = LongPrompt();
  context.prompt_tokens = context.turn_tokens = 50;
  const ResolvedGates first = Resolve(Named("rocketkv"), context);
  ASSERT_EQ(first.retention.kind, RetentionKind::kFull);
  const ResolvedGates second = Resolve(Named("rocketkv"), LongPrompt(), &first);
  EXPECT_EQ(second.retention.budget, SplitBudget(16384, 128, 1024, 32768, 128).prompt_budget);
}

}  // namespace
}  // namespace sluice
