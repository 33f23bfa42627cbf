// Gates against make_selection.py and make_retention.py in tests/golden/compression, which compute attention,
// pooling and the choice of rows in f64 from their definitions.
#include "common/compression/compression_spec.h"
#include "common/compression/propagation/propagation_policy.h"
#include "common/compression/retention/retention_policy.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/compression/golden_cases.h"
#include "tests/common/compression/test_layer.h"

namespace sluice {
namespace {

TestLayerShape ShapeOf(const nlohmann::json& c) {
  return {.kv_heads = c["kv_heads"],
          .group = c["group"],
          .head_dim = c["head_dim"],
          .n = c["n"],
          .held = c["held"],
          .sliding_window = c.value("sliding_window", 0),
          .layer = c.value("layer", 0)};
}

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
  const nlohmann::json cases = GoldenCases("selection.json");
  ASSERT_GE(cases.size(), 35u);
  for (const auto& c : cases) {
    SCOPED_TRACE(AskedIn(c));
    TestLayer layer(ShapeOf(c), c["seed"]);
    const RetentionGate keep = {.kind = RetentionKind::kSnapKv,
                                .budget = c["budget"],
                                .observation = {.window = c["window"], .pooling = PoolingOf(c["pooling"])}};
    LayerPlan plan;
    ASSERT_TRUE(
        RetentionPolicyOf(keep.kind).Plan(layer.view(), keep, layer.ops(), layer.workspace(), &plan).ok());
    EXPECT_EQ(layer.Rows(plan), c["keep"].get<std::vector<std::vector<int32_t>>>());

    const PropagationGate go_on = {
        .kind = PropagationKind::kTsp, .layer = 0, .rows = c["tsp_rows"], .observation = keep.observation};
    TensorView rows;
    ASSERT_TRUE(PropagationPolicyOf(go_on.kind)
                    ->Rows(layer.view(), go_on, layer.ops(), layer.workspace(), &rows)
                    .ok());
    EXPECT_EQ(layer.Read<int32_t>(rows), c["go_on"].get<std::vector<int32_t>>());
  }
}

RetentionGate GateOf(const nlohmann::json& c) {
  RetentionGate gate;
  gate.budget = c["budget"];
  gate.observation = {.window = c["window"],
                      .pooling = PoolingOf(c["pooling"]),
                      .pool_per_head = c["pool_per_head"],
                      .round_weights = c["round_weights"]};
  const std::string kind = c["kind"];
  if (kind == "snapkv") {
    gate.kind = RetentionKind::kSnapKv;
  } else if (kind == "chunkkv") {
    gate.kind = RetentionKind::kChunkKv;
    gate.chunk = c["chunk"];
    gate.one_set = c.value("one_set", false);
  } else if (kind == "h2o") {
    gate.kind = RetentionKind::kH2o;
    gate.recent = c["recent"];
  } else if (kind == "adakv") {
    gate.kind = RetentionKind::kAdaKv;
    gate.floor = c["floor"];
    gate.most = c["n"];
  } else {
    // The numbers of a pyramid are the resolver's.
    GateContext context;
    context.prompt_tokens = context.turn_tokens = c["n"];
    context.n_layers = c["layers"];
    context.context = 32768;
    CompressionSpec spec;
    spec.preset = "pyramidkv";
    spec.budget_tokens = gate.budget;
    spec.window = gate.observation.window;
    spec.pooling = gate.observation.pooling;
    auto gates = ResolveGates(spec, context, nullptr);
    EXPECT_TRUE(gates.ok()) << gates.status();
    if (gates.ok()) gate = gates->retention;
  }
  return gate;
}

TEST(MethodsGoldenTest, RowsAreEqual) {
  const nlohmann::json cases = GoldenCases("retention.json");
  ASSERT_GE(cases.size(), 100u);
  for (const auto& c : cases) {
    SCOPED_TRACE(AskedIn(c));
    TestLayer layer(ShapeOf(c), c["seed"]);
    if (c.contains("go_on")) {
      const PropagationKind kind = c["kind"] == "tsp" ? PropagationKind::kTsp : PropagationKind::kRerun;
      const PropagationGate gate = {.kind = kind,
                                    .layer = 0,
                                    .rows = c["rows"],
                                    .observation = {.window = c["window"],
                                                    .pooling = PoolingOf(c["pooling"]),
                                                    .pool_per_head = c["pool_per_head"],
                                                    .round_weights = c["round_weights"],
                                                    .raw = c.value("raw", false)}};
      TensorView rows;
      const absl::Status status =
          PropagationPolicyOf(kind)->Rows(layer.view(), gate, layer.ops(), layer.workspace(), &rows);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(layer.Read<int32_t>(rows), c["go_on"].get<std::vector<int32_t>>());
      continue;
    }
    const RetentionGate gate = GateOf(c);
    LayerPlan plan;
    const absl::Status status =
        RetentionPolicyOf(gate.kind).Plan(layer.view(), gate, layer.ops(), layer.workspace(), &plan);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(layer.Rows(plan), c["keep"].get<std::vector<std::vector<int32_t>>>());
  }
}

}  // namespace
}  // namespace sluice
