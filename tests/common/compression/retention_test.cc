// What every retention method owes, and what is special about each.
#include "common/compression/retention/retention_policy.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

constexpr int kBudget = 48, kWindow = 8, kLayer = 5;

RetentionGate GateOf(RetentionKind kind, int budget = kBudget, int window = kWindow) {
  RetentionGate gate;
  gate.kind = kind;
  gate.budget = budget;
  gate.sinks = 4;
  gate.recent = budget / 2;
  gate.chunk = 10;
  gate.top = budget + 3 * kLayer;
  gate.step = 3;
  gate.most = 3 * budget;
  gate.floor = 0.2f;
  gate.observation = {.window = window, .pooling = {.kind = Pooling::kFading}};
  return gate;
}

// Rows at the end of the prompt that stay whatever their scores.
int TailOf(const RetentionGate& gate) {
  if (gate.kind == RetentionKind::kStreamingLlm) return gate.budget - gate.sinks;
  return gate.kind == RetentionKind::kH2o ? gate.recent : gate.observation.window;
}

struct Edge {
  const char* name;
  int n, held, window, budget;
};

class RetentionConformance : public ::testing::TestWithParam<std::tuple<RetentionKind, Edge, int, bool>> {};

TEST_P(RetentionConformance, KeepsWhatItOwes) {
  const auto& [kind, edge, group, one_set] = GetParam();
  SCOPED_TRACE(edge.name);
  const int n = edge.n, held = edge.held, budget = edge.budget, window = edge.window;
  const RetentionPolicy& policy = RetentionPolicyOf(kind);
  RetentionGate gate = GateOf(kind, budget, window);
  gate.one_set = one_set;
  TestLayer layer({.kv_heads = 3, .group = group, .n = n, .held = held, .layer = kLayer}, 5);
  LayerPlan plan;
  const absl::Status status = policy.Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LE(policy.window(gate), window);
  EXPECT_LE(policy.MaxKept(gate, LayerId(kLayer), n), n);
  ASSERT_EQ(plan.kept.size(), 3u);
  size_t total = 0;
  for (const std::vector<int32_t>& rows : layer.Rows(plan)) {
    total += rows.size();
    ASSERT_FALSE(rows.empty());
    EXPECT_LE(static_cast<int>(rows.size()), policy.MaxKept(gate, LayerId(kLayer), n));
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end());
    EXPECT_GE(rows.front(), 0);
    EXPECT_LT(rows.back(), n);
    if (n <= budget) {
      EXPECT_EQ(static_cast<int>(rows.size()), n);
    }
    for (int row = std::max(0, n - TailOf(gate)); row < n; ++row) {
      EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), row)) << row;
    }
  }
  if (kind != RetentionKind::kFull) {
    EXPECT_EQ(total, 3u * std::min(n, budget));
  }
}

constexpr Edge kEdges[] = {{"shorter than the budget", 20, 8, 8, 48},
                           {"as long as the budget", 48, 8, 8, 48},
                           {"one row more", 49, 8, 8, 48},
                           {"long", 300, 8, 8, 48},
                           {"one token", 1, 1, 1, 48},
                           {"one token behind a history", 300, 1, 1, 48},
                           {"nothing but the window", 8, 8, 8, 48},
                           {"a budget of the window", 300, 8, 8, 8},
                           {"a budget of nearly everything", 300, 8, 8, 299},
                           {"a partial last chunk", 303, 8, 8, 48},
                           {"whole pages", 64, 8, 8, 48},
                           {"a page and a row", 65, 8, 8, 64},
                           {"more queries than the window", 300, 40, 8, 48},
                           {"a wide window", 300, 40, 40, 48}};

INSTANTIATE_TEST_SUITE_P(EveryMethod, RetentionConformance,
                         ::testing::Combine(::testing::Values(RetentionKind::kFull, RetentionKind::kSnapKv,
                                                              RetentionKind::kStreamingLlm,
                                                              RetentionKind::kChunkKv,
                                                              RetentionKind::kPyramidKv,
                                                              RetentionKind::kAdaKv, RetentionKind::kH2o),
                                            ::testing::ValuesIn(kEdges), ::testing::Values(1, 3, 4, 7, 8),
                                            ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(OneSet, RetentionConformance,
                         ::testing::Combine(::testing::Values(RetentionKind::kChunkKv),
                                            ::testing::ValuesIn(kEdges), ::testing::Values(1, 4),
                                            ::testing::Values(true)));

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

std::vector<std::vector<int32_t>> RowsOf(TestLayer& layer, const LayerView& view, const RetentionGate& gate) {
  LayerPlan plan;
  const absl::Status status =
      RetentionPolicyOf(gate.kind).Plan(view, gate, layer.ops(), layer.workspace(), &plan);
  EXPECT_TRUE(status.ok()) << status;
  return layer.Rows(plan);
}

// Acceptance test (h) of algorithms.md §20.
TEST(ChunkKvTest, ChunksOfOneRowAreSnapKvWithoutPooling) {
  TestLayer layer({.group = 3, .n = 300}, 3);
  RetentionGate chunks = GateOf(RetentionKind::kChunkKv), snapkv = GateOf(RetentionKind::kSnapKv);
  chunks.chunk = 1;
  chunks.observation.pooling = snapkv.observation.pooling = {};
  EXPECT_EQ(RowsOf(layer, layer.view(), chunks), RowsOf(layer, layer.view(), snapkv));
}

TEST(ChunkKvTest, KeepsWholeChunksAndTheFirstRowsOfTheLast) {
  TestLayer layer({.n = 300}, 3);
  const RetentionGate gate = GateOf(RetentionKind::kChunkKv);  // 40 rows beside the window
  for (const auto& rows : RowsOf(layer, layer.view(), gate)) {
    std::vector<int> sizes(30);
    for (int32_t row : rows)
      if (row < 292) ++sizes[row / 10];
    // Four chunks of ten; or three, the last chunk of the prompt with its two rows, and eight rows of
    // another.
    EXPECT_GE(std::count(sizes.begin(), sizes.end(), 10), 3);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), 40);
  }
}

TEST(ChunkKvTest, OneSetIsTheSameForAllHeads) {
  TestLayer layer({.kv_heads = 3, .group = 3, .n = 300}, 3);
  RetentionGate gate = GateOf(RetentionKind::kChunkKv);
  const auto own = RowsOf(layer, layer.view(), gate);
  EXPECT_NE(own[0], own[1]);
  gate.one_set = true;
  const auto shared = RowsOf(layer, layer.view(), gate);
  EXPECT_EQ(shared[0], shared[1]);
  EXPECT_EQ(shared[0], shared[2]);
}

TEST(ChunkKvTest, AFollowerKeepsItsLeadersRows) {
  TestLayer one({.n = 300}, 3), other({.n = 300}, 4);
  const RetentionGate gate = GateOf(RetentionKind::kChunkKv);
  const auto own = RowsOf(other, other.view(), gate);
  LayerPlan leader;
  ASSERT_TRUE(RetentionPolicyOf(gate.kind).Plan(one.view(), gate, one.ops(), one.workspace(), &leader).ok());
  LayerView follower = other.view();
  follower.leader = &leader;
  EXPECT_EQ(RowsOf(other, follower, gate), one.Rows(leader));
  EXPECT_NE(own, one.Rows(leader));
}

TEST(AdaKvTest, TheFloorAndTheBoundHold) {
  TestLayer layer({.kv_heads = 4, .n = 300}, 3);
  RetentionGate gate = GateOf(RetentionKind::kAdaKv);
  gate.floor = 1;
  for (const auto& rows : RowsOf(layer, layer.view(), gate)) EXPECT_EQ(rows.size(), size_t{kBudget});
  gate.floor = 0;
  size_t most = 0;
  for (const auto& rows : RowsOf(layer, layer.view(), gate)) most = std::max(most, rows.size());
  ASSERT_GT(most, size_t{kBudget} + 1);
  gate.most = kBudget + 1;
  for (const auto& rows : RowsOf(layer, layer.view(), gate)) EXPECT_LE(rows.size(), size_t{kBudget} + 1);
}

// A key row that nobody but early queries attends to counts too: that is what sets it apart from snapkv.
TEST(H2oTest, EveryQueryCounts) {
  TestLayer all({.n = 300, .held = 300}, 6);
  RetentionGate gate = GateOf(RetentionKind::kH2o);
  gate.observation.window = 300;
  const auto rows = RowsOf(all, all.view(), gate);
  // Early rows are seen by most queries.
  for (const auto& head : rows)
    EXPECT_GT(std::count_if(head.begin(), head.end(), [](int r) { return r < 50; }), 5);
  LayerView none = all.view();
  none.q_window = none.q_window.Slice(0, 300, 300);
  LayerPlan plan;
  EXPECT_EQ(RetentionPolicyOf(gate.kind).Plan(none, gate, all.ops(), all.workspace(), &plan).code(),
            absl::StatusCode::kInvalidArgument);
}

// Whatever a peer sends as numbers is an error at worst.
TEST(RetentionTest, ContradictoryNumbersAreErrors) {
  TestLayer layer({.n = 300}, 1);
  for (RetentionKind kind : {RetentionKind::kSnapKv, RetentionKind::kStreamingLlm, RetentionKind::kChunkKv,
                             RetentionKind::kPyramidKv, RetentionKind::kAdaKv, RetentionKind::kH2o}) {
    RetentionGate gate;
    gate.kind = kind;
    gate.budget = kBudget;
    gate.sinks = gate.recent = gate.observation.window = kBudget + 1;
    gate.chunk = 10;
    LayerPlan plan;
    EXPECT_EQ(RetentionPolicyOf(kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan).code(),
              absl::StatusCode::kInvalidArgument)
        << static_cast<int>(kind);
  }
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
