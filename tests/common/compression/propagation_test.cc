#include "common/compression/propagation/propagation_policy.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

PropagationGate Tsp(int rows) {
  return {.kind = PropagationKind::kTsp, .layer = 3, .rows = rows, .window = 8, .pooling = {.kernel = 7}};
}

TEST(PropagationTest, NoneHasNoPolicy) { EXPECT_EQ(PropagationPolicyOf(PropagationKind::kNone), nullptr); }

class TspConformance : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(TspConformance, RowsAscendAndEndWithTheWindow) {
  const auto [n, rows, group] = GetParam();
  TestLayer layer({.group = group, .n = n}, 2);
  const PropagationPolicy& policy = *PropagationPolicyOf(PropagationKind::kTsp);
  EXPECT_EQ(policy.window(Tsp(rows)), 8);
  TensorView chosen;
  const absl::Status status = policy.Rows(layer.view(), Tsp(rows), layer.ops(), layer.workspace(), &chosen);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(chosen.rank, 1);
  ASSERT_EQ(chosen.shape[0], rows);
  const std::vector<int32_t> got = layer.Read<int32_t>(chosen);
  for (int i = 1; i < rows; ++i) ASSERT_LT(got[i - 1], got[i]);
  EXPECT_GE(got.front(), 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(got[rows - 8 + i], n - 8 + i);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TspConformance,
                         ::testing::Values(std::tuple(300, 60, 1), std::tuple(300, 60, 7),
                                           std::tuple(300, 299, 3), std::tuple(300, 8, 4),
                                           std::tuple(9, 8, 8)));

TEST(TspTest, AWindowBeyondItsRowsIsRefused) {
  TestLayer layer({.n = 300}, 2);
  TensorView chosen;
  EXPECT_EQ(PropagationPolicyOf(PropagationKind::kTsp)
                ->Rows(layer.view(), Tsp(7), layer.ops(), layer.workspace(), &chosen)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
