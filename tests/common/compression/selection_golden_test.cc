// snapkv and tsp against tests/golden/compression/make_selection.py, which computes attention, pooling and
// the choice of rows in f64 from their definitions.
#include <fstream>

#include "common/compression/propagation/propagation_policy.h"
#include "common/compression/retention/retention_policy.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

Pooling PoolingOf(const nlohmann::json& json) {
  Pooling pooling;
  const std::string kind = json["kind"];
  if (kind == "fading") {
    pooling.kind = Pooling::kFading;
    pooling.after = json["after"];
    pooling.before = json["before"];
  } else {
    pooling.kind = kind == "avg" ? Pooling::kAvg : Pooling::kMax;
    pooling.kernel = json["kernel"];
  }
  return pooling;
}

TEST(SelectionGoldenTest, RowsAreEqual) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/golden/compression/selection.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 35u);
  for (const auto& c : cases) {
    nlohmann::json shown = c;
    shown.erase("keep");
    shown.erase("go_on");
    SCOPED_TRACE(shown.dump());
    TestLayer layer({.kv_heads = c["kv_heads"],
                     .group = c["group"],
                     .head_dim = c["head_dim"],
                     .n = c["n"],
                     .held = c["held"],
                     .sliding_window = c["sliding_window"]},
                    c["seed"]);
    const RetentionGate keep = {.kind = RetentionKind::kSnapKv,
                                .budget = c["budget"],
                                .window = c["window"],
                                .sinks = 0,
                                .pooling = PoolingOf(c["pooling"])};
    LayerPlan plan;
    ASSERT_TRUE(
        RetentionPolicyOf(keep.kind).Plan(layer.view(), keep, layer.ops(), layer.workspace(), &plan).ok());
    EXPECT_EQ(layer.Rows(plan), c["keep"].get<std::vector<std::vector<int32_t>>>());

    const PropagationGate go_on = {.kind = PropagationKind::kTsp,
                                   .layer = 0,
                                   .rows = c["tsp_rows"],
                                   .window = c["window"],
                                   .pooling = keep.pooling};
    TensorView rows;
    ASSERT_TRUE(PropagationPolicyOf(go_on.kind)
                    ->Rows(layer.view(), go_on, layer.ops(), layer.workspace(), &rows)
                    .ok());
    EXPECT_EQ(layer.Read<int32_t>(rows), c["go_on"].get<std::vector<int32_t>>());
  }
}

}  // namespace
}  // namespace sluice
