// Does the answer survive each method? A seven-digit value in about 4,000 tokens of prose.
#include <gtest/gtest.h>

#include "common/compression/compression_spec.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

// The first eight tokens after the answer prefix, as text.
std::string Answer(const NeedlePrompt& prompt, const CompressionSpec& spec) {
  const Model& model = NeedleModel();
  auto gates = ResolveFor(model.shape(), spec, static_cast<int>(prompt.ids.size()), 32);
  EXPECT_TRUE(gates.ok()) << gates.status();
  EXPECT_EQ(gates->off_reason, "");
  auto tokens = Generate(model, {.ids = prompt.ids, .gates = *gates}, 9);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return NeedleTokenizer().Decode(*tokens);
}

CompressionSpec Preset(const char* name, int budget) {
  CompressionSpec spec;
  spec.preset = name;
  spec.budget_tokens = budget;
  return spec;
}

struct Method {
  const char* name;
  CompressionSpec spec;
};

std::vector<Method> Methods() {
  CompressionSpec fading = Preset("snapkv", 256);
  fading.pooling = Pooling{.kind = Pooling::kFading};
  // A kernel that reaches over seven digits.
  const auto wide = [](CompressionSpec spec) {
    spec.pooling = Pooling{.kind = Pooling::kMax, .kernel = 15};
    return spec;
  };
  return {{"full", {}},
          {"sluice", Preset("sluice", 256)},
          {"rocketkv_256", Preset("rocketkv", 256)},
          {"rocketkv_512", Preset("rocketkv", 512)},
          {"snapkv_fading_256", fading},
          {"gemfilter_512", Preset("gemfilter", 512)},
          {"adakv_wide_256", wide(Preset("adakv", 256))},
          {"pyramidkv_wide_512", wide(Preset("pyramidkv", 512))},
          {"fastkv_wide_256", wide(Preset("fastkv", 256))},
          {"quest_1024", Preset("quest", 1024)},
          {"sparq_256", Preset("sparq", 256)},
          {"exact_topk_256", Preset("exact_topk", 256)}};
}

class Needle : public ::testing::TestWithParam<Method> {};

TEST_P(Needle, IsFoundAtEveryDepth) {
  uint32_t seed = 100;
  for (double depth : {0.05, 0.5, 0.9}) {
    const NeedlePrompt prompt = MakeNeedlePrompt(4000, depth, ++seed);
    EXPECT_EQ(Answer(prompt, GetParam().spec), " " + prompt.value + ".") << "depth " << depth;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Needle, ::testing::ValuesIn(Methods()),
                         [](const auto& info) { return info.param.name; });

// The proof that the test above can fail: a method that keeps the first rows and the last ones has no chance.
TEST(NeedleLost, StreamingLlmCannotKnowTheMiddle) {
  const NeedlePrompt prompt = MakeNeedlePrompt(4000, 0.5, 102);
  EXPECT_EQ(Answer(prompt, Preset("streaming_llm", 256)).find(prompt.value), std::string::npos);
}

}  // namespace
}  // namespace sluice
