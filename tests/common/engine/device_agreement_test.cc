// The first GPU says what the CPU says: greedy tokens of long prompts under every kind of gate, over two
// turns. Both round K and V to bf16, a GPU rounds activations, too: texts may part, but not early, and only
// where the CPU itself is undecided.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/compression/compression_spec.h"
#include "common/model/model_dir.h"
#include "kernels/make_backend.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kSurelyEqual = 16;  // tokens

// Where the texts part: the first token that differs, or none.
std::optional<size_t> Parting(const GreedyRun& cpu, const GreedyRun& gpu) {
  for (size_t i = 0; i < std::min(cpu.tokens.size(), gpu.tokens.size()); ++i)
    if (cpu.tokens[i] != gpu.tokens[i]) return i;
  return std::nullopt;
}

std::string Describe(const GreedyRun& cpu, const GreedyRun& gpu) {
  const std::optional<size_t> at = Parting(cpu, gpu);
  if (!at) return "same";
  return absl::StrCat("part at token ", *at, ", where the CPU's margin is ",
                      cpu.MarginOver(*at, gpu.tokens[*at]));
}

void ExpectAgreement(const GreedyRun& cpu, const GreedyRun& gpu) {
  const std::optional<size_t> at = Parting(cpu, gpu);
  if (!at) return;
  EXPECT_GE(static_cast<int>(*at), kSurelyEqual) << Describe(cpu, gpu);
  EXPECT_LT(cpu.MarginOver(*at, gpu.tokens[*at]), kUndecided) << Describe(cpu, gpu);
}

class DeviceAgreement : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (CountGpus() == 0) GTEST_SKIP() << "needs a GPU";
  }

  // `turn` new tokens after `history` ones, on both devices; with history=keep in two turns, else in one.
  void Compare(const std::string& path, const Tokens& ids, int budget) {
    const Model& cpu = TestModel(path, DType::kBF16, BestCpuIsa(), "cpu");
    const Model& gpu = TestModel(path, DType::kBF16, BestCpuIsa(), "cuda");
    CompressionSpec spec;
    spec.preset = GetParam();
    spec.budget_tokens = budget;
    spec.min_prompt_tokens = 0;
    auto gates = ResolveFor(cpu.shape(), spec, static_cast<int>(ids.size()), 32);
    ASSERT_TRUE(gates.ok()) << gates.status();
    const int split = gates->history == HistoryKind::kKeep ? static_cast<int>(ids.size()) * 2 / 3 : 0;
    GreedyRun decoded[2];
    for (int d = 0; d < 2; ++d) {
      const Model& model = d == 0 ? cpu : gpu;
      std::vector<LocalPrefill> first;
      std::unique_ptr<CollectedHistory> history;
      if (split > 0) {
        auto prefix = PrefillTogether(model, {{.ids = {ids.begin(), ids.begin() + split}}}, true);
        ASSERT_TRUE(prefix.ok()) << prefix.status();
        first = *std::move(prefix);
        history = std::make_unique<CollectedHistory>(&model, first[0].sink.get());
      }
      const LocalRequest request{.ids = {ids.begin() + split, ids.end()},
                                 .gates = *gates,
                                 .history = history.get(),
                                 .first_position = split};
      auto prefill = PrefillTogether(model, {request});
      ASSERT_TRUE(prefill.ok()) << prefill.status();
      auto run = DecodeGreedily(model, (*prefill)[0], request, 32, /*to_end=*/true);
      ASSERT_TRUE(run.ok()) << run.status();
      decoded[d] = *std::move(run);
    }
    std::cout << GetParam() << ", " << ids.size() << " tokens: " << Describe(decoded[0], decoded[1]) << "\n";
    ExpectAgreement(decoded[0], decoded[1]);
  }
};

TEST_P(DeviceAgreement, ShortPromptsOfTheBundledModel) {
  const std::string path = SourcePath("models/needle-14m");
  const auto golden = nlohmann::json::parse(ReadFile(path + "/golden.json"));
  for (const auto& prompt : golden["prompts"]) Compare(path, prompt["ids"], 128);
}

TEST_P(DeviceAgreement, LongPromptsOfTheBundledModel) {
  int seed = 40;
  for (int tokens : {8000, 12000, 16000})
    Compare(SourcePath("models/needle-14m"), MakeNeedlePrompt(tokens, 0.4, ++seed).ids, 128);
}

TEST_P(DeviceAgreement, LongPromptsOfSmolLm2) {
  const char* directory = std::getenv("SLUICE_MODELS_DIR");
  const std::string path =
      std::string(directory == nullptr ? "." : directory) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (directory == nullptr || !std::filesystem::exists(path))
    GTEST_SKIP() << "needs $SLUICE_MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf";
  const auto tokenizer = OpenTokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = ReadFile(SourcePath("models/needle-14m/haystack.txt"));
  // A small model read through few rows is seldom sure of itself: nothing can be the same where it hesitates.
  // Of these answers it is, after 8,000 tokens of prose.
  const char* const kQuestions[] = {"What is the capital of France?", "What is the capital of Germany?",
                                    "What is the capital of Italy?"};
  for (size_t i = 0; i < 3; ++i) {
    const std::string prose = text.substr(text.find('.', i * text.size() / 4) + 1, 36000);
    const std::string question =
        absl::StrCat("<|im_end|>\n<|im_start|>user\n", kQuestions[i], "<|im_end|>\n<|im_start|>assistant\n");
    Tokens ids =
        *(*tokenizer)->Encode("<|im_start|>user\n" + prose, {.parse_special = true, .add_special = false});
    ids.resize(std::min<size_t>(ids.size(), 8100));  // of a context of 8,192
    const Tokens end = *(*tokenizer)->Encode(question, {.parse_special = true, .add_special = false});
    ids.insert(ids.end(), end.begin(), end.end());
    ASSERT_GT(ids.size(), 7500u);
    Compare(path, ids, 128);
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, DeviceAgreement,
                         ::testing::Values("full", "rocketkv", "rocketkv-mt", "sluice", "sluice-mt", "quest",
                                           "sparq", "exact_topk"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
