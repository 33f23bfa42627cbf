// What every propagation method owes.
#include "common/compression/propagation/propagation_policy.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

PropagationGate GateOf(PropagationKind kind, int rows, int window, bool raw) {
  return {.kind = kind,
          .layer = 3,
          .rows = rows,
          .observation = {.window = window, .pooling = {.kernel = 7}, .raw = raw}};
}

TEST(PropagationTest, NoneHasNoPolicy) { EXPECT_EQ(PropagationPolicyOf(PropagationKind::kNone), nullptr); }

TEST(PropagationTest, OnlyRerunRestarts) {
  EXPECT_FALSE(PropagationPolicyOf(PropagationKind::kTsp)->restarts());
  EXPECT_TRUE(PropagationPolicyOf(PropagationKind::kRerun)->restarts());
}

TEST(PropagationTest, RowsOfALayer) {
  const PropagationGate none = {}, tsp = GateOf(PropagationKind::kTsp, 60, 8, false),
                        rerun = GateOf(PropagationKind::kRerun, 60, 8, false);
  for (int layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(RowsAt(none, layer, 300), 300);
    EXPECT_EQ(RowsAt(tsp, layer, 300), layer <= 3 ? 300 : 60);
    EXPECT_EQ(RowsAt(rerun, layer, 300), 60);
    EXPECT_EQ(RowsAt(rerun, layer, 40), 40);
  }
}

struct Edge {
  const char* name;
  int n, rows, window;
};

class PropagationConformance : public ::testing::TestWithParam<std::tuple<PropagationKind, bool, Edge, int>> {
};

TEST_P(PropagationConformance, RowsAscendAndEndWithTheWindow) {
  const auto& [kind, raw, edge, group] = GetParam();
  SCOPED_TRACE(edge.name);
  const int n = edge.n, window = edge.window;
  TestLayer layer({.group = group, .n = n, .held = window}, 2);
  const PropagationPolicy& policy = *PropagationPolicyOf(kind);
  const PropagationGate gate = GateOf(kind, edge.rows, window, raw);
  EXPECT_EQ(policy.window(gate), window);
  TensorView chosen;
  const absl::Status status = policy.Rows(layer.view(), gate, layer.ops(), layer.workspace(), &chosen);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(chosen.rank, 1);
  ASSERT_EQ(chosen.shape[0], edge.rows);
  const std::vector<int32_t> got = layer.Read<int32_t>(chosen);
  for (int i = 1; i < edge.rows; ++i) ASSERT_LT(got[i - 1], got[i]);
  EXPECT_GE(got.front(), 0);
  for (int i = 0; i < window; ++i) EXPECT_EQ(got[edge.rows - window + i], n - window + i);
}

INSTANTIATE_TEST_SUITE_P(
    EveryMethod, PropagationConformance,
    ::testing::Combine(::testing::Values(PropagationKind::kTsp, PropagationKind::kRerun), ::testing::Bool(),
                       ::testing::Values(Edge{"a few of many", 300, 60, 8}, Edge{"all but one", 300, 299, 8},
                                         Edge{"window only", 300, 8, 8}, Edge{"one row", 300, 1, 1},
                                         Edge{"one row before the window", 9, 8, 8},
                                         Edge{"two tokens", 2, 1, 1}, Edge{"page border", 65, 64, 8},
                                         Edge{"wide window", 100, 80, 64}),
                       ::testing::Values(1, 3, 4, 7, 8)));

TEST(PropagationTest, AWindowBeyondItsRowsIsRefused) {
  TestLayer layer({.n = 300}, 2);
  for (PropagationKind kind : {PropagationKind::kTsp, PropagationKind::kRerun}) {
    TensorView chosen;
    EXPECT_EQ(PropagationPolicyOf(kind)
                  ->Rows(layer.view(), GateOf(kind, 7, 8, false), layer.ops(), layer.workspace(), &chosen)
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
