// What every retention method owes, and what is special about each.
#include "common/compression/retention/retention_policy.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

constexpr int kBudget = 48, kWindow = 8;

RetentionGate GateOf(RetentionKind kind) {
  RetentionGate gate;
  gate.kind = kind;
  gate.budget = kBudget;
  gate.window = kWindow;
  gate.sinks = 4;
  gate.pooling = {.kind = Pooling::kFading};
  return gate;
}

class RetentionConformance : public ::testing::TestWithParam<std::tuple<RetentionKind, int, int>> {};

TEST_P(RetentionConformance, KeepsWhatItOwes) {
  const auto [kind, n, group] = GetParam();
  const RetentionPolicy& policy = RetentionPolicyOf(kind);
  const RetentionGate gate = GateOf(kind);
  TestLayer layer({.group = group, .n = n}, 5);
  LayerPlan plan;
  const absl::Status status = policy.Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LE(policy.window(gate), kWindow);
  ASSERT_EQ(plan.kept.size(), 2u);
  for (const std::vector<int32_t>& rows : layer.Rows(plan)) {
    ASSERT_FALSE(rows.empty());
    EXPECT_LE(static_cast<int>(rows.size()), policy.MaxKept(gate, n));
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end());
    EXPECT_GE(rows.front(), 0);
    EXPECT_LT(rows.back(), n);
    if (n <= kBudget) {
      EXPECT_EQ(static_cast<int>(rows.size()), n);
    }
    // The end of the prompt always stays.
    for (int row = n - kWindow; row < n; ++row) {
      EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), row)) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryMethod, RetentionConformance,
                         ::testing::Combine(::testing::Values(RetentionKind::kFull, RetentionKind::kSnapKv,
                                                              RetentionKind::kStreamingLlm),
                                            ::testing::Values(kWindow, 20, kBudget, kBudget + 1, 300),
                                            ::testing::Values(1, 3, 4, 7, 8)));

TEST(FullTest, KeepsAllWhateverTheBudget) {
  TestLayer layer({.n = 300}, 1);
  LayerPlan plan;
  ASSERT_TRUE(RetentionPolicyOf(RetentionKind::kFull)
                  .Plan(layer.view(), RetentionGate{}, layer.ops(), layer.workspace(), &plan)
                  .ok());
  EXPECT_THAT(plan.kept, ElementsAre(300, 300));
}

TEST(StreamingLlmTest, KeepsFirstAndLastRows) {
  TestLayer layer({.n = 300}, 1);
  RetentionGate gate = GateOf(RetentionKind::kStreamingLlm);
  gate.budget = 7;
  LayerPlan plan;
  ASSERT_TRUE(
      RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).ok());
  for (const auto& rows : layer.Rows(plan)) EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 297, 298, 299));
  gate.budget = 4;
  EXPECT_EQ(
      RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(SnapKvTest, ABudgetOfTheWindowKeepsTheWindow) {
  TestLayer layer({.n = 300}, 1);
  RetentionGate gate = GateOf(RetentionKind::kSnapKv);
  gate.budget = kWindow;
  LayerPlan plan;
  ASSERT_TRUE(
      RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).ok());
  for (const auto& rows : layer.Rows(plan))
    EXPECT_THAT(rows, ElementsAre(292, 293, 294, 295, 296, 297, 298, 299));
  gate.budget = kWindow - 1;
  EXPECT_EQ(
      RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).code(),
      absl::StatusCode::kInvalidArgument);
}

// A bigger budget only adds rows.
TEST(SnapKvTest, BudgetsAreNested) {
  TestLayer layer({.group = 3, .n = 300}, 9);
  std::vector<std::vector<int32_t>> before;
  for (int budget : {9, 20, 48, 100, 299}) {
    RetentionGate gate = GateOf(RetentionKind::kSnapKv);
    gate.budget = budget;
    LayerPlan plan;
    ASSERT_TRUE(
        RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).ok());
    const auto rows = layer.Rows(plan);
    for (size_t h = 0; h < before.size(); ++h) {
      EXPECT_TRUE(std::includes(rows[h].begin(), rows[h].end(), before[h].begin(), before[h].end()));
    }
    before = rows;
  }
}

}  // namespace
}  // namespace sluice
