// The two real models against Transformers (tests/golden/real_models/README.md). Their files are not in the
// tree: $SLUICE_MODELS_DIR names where they lie.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

class RealModel : public ::testing::TestWithParam<const char*> {};

TEST_P(RealModel, LogitsAndGreedyTokens) {
  const std::string path = SourcePath("tests/golden/real_models/") + GetParam() + ".json";
  if (!std::ifstream(path).good()) GTEST_SKIP() << "no " << path;
  const auto golden = nlohmann::json::parse(ReadFile(path));
  const char* directory = std::getenv("SLUICE_MODELS_DIR");
  const std::string file =
      std::string(directory == nullptr ? "." : directory) + "/" + golden["file"].get<std::string>();
  if (directory == nullptr || !std::ifstream(file).good())
    GTEST_SKIP() << "needs $SLUICE_MODELS_DIR/" << golden["file"];

  const Model& model = TestModel(file, DType::kF32);
  const float tolerance = std::max(0.01f, LogitTolerance(DType::kF32, BestCpuIsa()));
  for (const auto& [name, prompt] : golden["prompts"].items()) {
    SCOPED_TRACE(name);
    const std::vector<int32_t> ids = prompt["ids"], greedy = prompt["greedy_ids"];
    for (size_t p = 0; p < prompt["positions"].size(); ++p) {
      const int n = prompt["positions"][p].get<int>() + 1;
      auto prefill = PrefillTogether(model, {{.ids = {ids.begin(), ids.begin() + n}}});
      ASSERT_TRUE(prefill.ok()) << prefill.status();
      for (size_t i = 0; i < prompt["top_ids"][p].size(); ++i) {
        EXPECT_NEAR((*prefill)[0].logits[prompt["top_ids"][p][i]], prompt["top_logits"][p][i].get<float>(),
                    tolerance)
            << "after " << n << " tokens";
      }
    }
    auto tokens = Generate(model, {.ids = ids}, static_cast<int>(greedy.size()));
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    // Texts may part where the best two tokens are closer than the tolerance.
    for (size_t i = 0; i < greedy.size() && prompt["greedy_gaps"][i].get<float>() > 2 * tolerance; ++i)
      ASSERT_EQ((*tokens)[i], greedy[i]) << "token " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Gguf, RealModel, ::testing::Values("smollm2-135m", "qwen2.5-coder-0.5b"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice
