// The two real models against Transformers (tests/golden/real_models/README.md), on every instruction set of
// this machine. Their files are not in the tree: $SLUICE_MODELS_DIR names where they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

class RealModel : public ::testing::TestWithParam<std::tuple<const char*, CpuIsa>> {};

// Of one prefill: the worst of the golden's best logits, and of the mean of all. The best token must be the
// golden's where the golden is sure of it.
float WorstError(const std::vector<float>& logits, const nlohmann::json& ids, const nlohmann::json& expected,
                 float expected_mean, float tolerance) {
  float worst = std::abs(std::accumulate(logits.begin(), logits.end(), 0.) / logits.size() - expected_mean);
  for (size_t i = 0; i < ids.size(); ++i)
    worst = std::max(worst, std::abs(logits[ids[i].get<int>()] - expected[i].get<float>()));
  if (expected[0].get<float>() - expected[1].get<float>() > tolerance) {
    EXPECT_EQ(Greedy(logits), ids[0].get<int>());
  }
  return worst;
}

TEST_P(RealModel, LogitsAndGreedyTokens) {
  const auto& [name, isa] = GetParam();
  const auto golden =
      nlohmann::json::parse(ReadFile(SourcePath("tests/golden/real_models/") + name + ".json"));
  const char* directory = std::getenv("SLUICE_MODELS_DIR");
  const std::string file =
      std::string(directory == nullptr ? "." : directory) + "/" + golden["file"].get<std::string>();
  if (directory == nullptr || !std::ifstream(file).good())
    GTEST_SKIP() << "needs $SLUICE_MODELS_DIR/" << golden["file"];

  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Model& model = TestModel(file, dtype, isa);
    const float tolerance = LogitTolerance(dtype, isa);
    for (const auto& [prompt_name, prompt] : golden["prompts"].items()) {
      SCOPED_TRACE(prompt_name + (dtype == DType::kF32 ? ", f32 KV" : ", bf16 KV"));
      const std::vector<int32_t> ids = prompt["ids"], greedy = prompt["greedy_ids"];
      float worst = 0;
      for (size_t p = 0; p < prompt["positions"].size(); ++p) {
        const int n = prompt["positions"][p].get<int>() + 1;
        auto prefill = PrefillTogether(model, {{.ids = {ids.begin(), ids.begin() + n}}});
        ASSERT_TRUE(prefill.ok()) << prefill.status();
        worst = std::max(worst, WorstError((*prefill)[0].logits, prompt["top_ids"][p],
                                           prompt["top_logits"][p], prompt["mean_logits"][p], tolerance));
      }
      EXPECT_LE(worst, tolerance);
      std::cout << prompt_name << (dtype == DType::kF32 ? ", f32" : ", bf16") << " KV: worst logit error "
                << worst << "\n";
      auto tokens = Generate(model, {.ids = ids}, static_cast<int>(greedy.size()));
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      // Texts may part where the best two tokens are closer than two errors.
      for (size_t i = 0; i < greedy.size() && prompt["greedy_gaps"][i].get<float>() > 2 * tolerance; ++i)
        ASSERT_EQ((*tokens)[i], greedy[i]) << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gguf, RealModel,
                         ::testing::Combine(::testing::Values("smollm2-135m", "qwen2.5-coder-0.5b"),
                                            ::testing::ValuesIn(SupportedCpuIsas())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name + "Isa" + std::to_string(static_cast<int>(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace sluice
