// Prefill and decode against what Transformers computes in f32.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

class Golden : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(Golden, GreedyTokensAndLogitsOfTheBundledModel) {
  const auto golden = nlohmann::json::parse(ReadFile(SourcePath("models/needle-14m/golden.json")));
  for (auto [dtype, tolerance] : {std::pair(DType::kF32, 1e-3f), std::pair(DType::kBF16, 0.25f)}) {
    const Model& model = NeedleModel(dtype, GetParam());
    for (const auto& prompt : golden["prompts"]) {
      SCOPED_TRACE(prompt["name"].get<std::string>() + (dtype == DType::kF32 ? ", f32 KV" : ", bf16 KV"));
      const LocalRequest request{.ids = prompt["ids"]};
      auto prefill = PrefillTogether(model, {request});
      ASSERT_TRUE(prefill.ok()) << prefill.status();
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR((*prefill)[0].logits[prompt["top5_ids"][i]], prompt["top5_logits"][i].get<float>(),
                    tolerance);
      }
      auto tokens = Generate(model, request, 32);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_EQ(*tokens, prompt["greedy_ids"].get<std::vector<int32_t>>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Golden, ::testing::ValuesIn(SupportedCpuIsas()), [](const auto& info) {
  return "Isa" + std::to_string(static_cast<int>(info.param));
});

}  // namespace
}  // namespace sluice
