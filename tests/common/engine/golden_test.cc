// Prefill and decode against what Transformers computes in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

class Golden : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(Golden, GreedyTokensAndLogitsOfTheBundledModel) {
  const auto golden = nlohmann::json::parse(ReadFile(SourcePath("models/needle-14m/golden.json")));
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const float tolerance = LogitTolerance(dtype, GetParam());
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

// Random models, one for each part of the architecture: sliding windows, biases, norms, rotary scalings
// (tests/golden/models/README.md).
TEST_P(Golden, DecodeLogitsOfTheTinyModels) {
  for (const char* name : {"llama-yarn", "llama3", "qwen2-bias", "qwen2-window", "qwen3", "mistral-window",
                           "ministral-mixed", "nemo-sharded", "qwen2-heads"}) {
    SCOPED_TRACE(name);
    const std::string folder = SourcePath("tests/golden/models/") + name;
    const auto golden = nlohmann::json::parse(ReadFile(folder + "/golden.json"));
    const Model& model = TestModel(folder, DType::kF32, GetParam());
    const std::vector<int32_t> ids = golden["prompt_ids"], greedy = golden["greedy_ids"];
    auto prefill = PrefillTogether(model, {{.ids = ids}});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    EXPECT_EQ(Greedy((*prefill)[0].logits), greedy[0]);
    auto decoder = LocalDecoder::Create(model, /*n_slots=*/2, /*memory_bytes=*/size_t{4} << 20);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    auto kv = (*decoder)->Receive((*prefill)[0], {}, static_cast<int>(ids.size()));
    ASSERT_TRUE(kv.ok()) << kv.status();
    for (size_t i = 0; i + 1 < greedy.size(); ++i) {
      const DecodeRow row{
          .kv = kv->get(), .token = greedy[i], .position = LogicalLen(static_cast<int>(ids.size() + i))};
      auto logits = (*decoder)->Step({row});
      ASSERT_TRUE(logits.ok()) << logits.status();
      const std::vector<float> expected = golden["decode_logits"][i];
      float worst = 0;
      for (size_t j = 0; j < expected.size(); ++j)
        worst = std::max(worst, std::abs((*logits)[0].logits[j] - expected[j]));
      EXPECT_LE(worst, LogitTolerance(DType::kF32, GetParam())) << "step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Golden, ::testing::ValuesIn(SupportedCpuIsas()), [](const auto& info) {
  return "Isa" + std::to_string(static_cast<int>(info.param));
});

}  // namespace
}  // namespace sluice
