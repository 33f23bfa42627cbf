#include "common/engine/logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::FloatNear;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ln p_i = -ln(sum_j exp(x_j - x_i)), in float64 and without the largest logit.
double PlainLogprob(const std::vector<float>& logits, size_t i) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - logits[i]);
  return -std::log(sum);
}

TEST(Logprobs, AreTheLogSoftmaxOfTheLogits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(5000);
  for (float& x : logits) x = normal(random);
  const TokenLogprobs all = LogprobsOf(logits, 17, 5000);
  EXPECT_NEAR(all.chosen, PlainLogprob(logits, 17), 2e-6);
  ASSERT_EQ(all.top_ids.size(), 5000u);
  double mass = 0;
  for (size_t i = 0; i < all.top.size(); ++i) {
    EXPECT_NEAR(all.top[i], PlainLogprob(logits, all.top_ids[i]), 4e-6);
    mass += std::exp(static_cast<double>(all.top[i]));
  }
  EXPECT_NEAR(mass, 1, 1e-6);
  std::vector<int32_t> ids = all.top_ids;
  std::sort(ids.begin(), ids.end());
  for (int32_t id = 0; id < 5000; ++id) ASSERT_EQ(ids[id], id);
  EXPECT_TRUE(std::is_sorted(all.top.rbegin(), all.top.rend()));
}

TEST(Logprobs, ListTheBestOfEqualsTheLowerId) {
  const std::vector<float> logits = {1, 3, -2, 3, 0, 1};
  EXPECT_THAT(LogprobsOf(logits, 0, 4).top_ids, ElementsAre(1, 3, 0, 5));
  EXPECT_THAT(LogprobsOf(logits, 0, 0).top_ids, ElementsAre());
  EXPECT_EQ(LogprobsOf(logits, 0, 99).top_ids.size(), 6u);
}

TEST(Logprobs, LogitsOfAnySizeStayFinite) {
  EXPECT_THAT(LogprobsOf(std::vector<float>{3e38f, 3e38f}, 1, 1).chosen, FloatNear(-std::log(2.0f), 1e-6f));
  EXPECT_THAT(LogprobsOf(std::vector<float>{-3e38f, -3e38f}, 0, 1).chosen, FloatNear(-std::log(2.0f), 1e-6f));
  const TokenLogprobs sure = LogprobsOf(std::vector<float>{1000, -1000}, 1, 2);
  EXPECT_THAT(sure.top, ElementsAre(0.0f, -2000.0f));
  EXPECT_EQ(sure.chosen, -2000.0f);
}

TEST(Logprobs, AMaskedTokenHasNone) {
  const TokenLogprobs masked = LogprobsOf(std::vector<float>{-kInfinity, 2, -kInfinity}, 0, 3);
  EXPECT_EQ(masked.chosen, -kInfinity);
  EXPECT_THAT(masked.top_ids, ElementsAre(1, 0, 2));
  EXPECT_THAT(masked.top, ElementsAre(0.0f, -kInfinity, -kInfinity));
}

// tests/golden/logprobs: what Transformers computes in f32, of the model's own tokens and of forced ones.
TEST(Logprobs, OfTheBundledModelAreTransformers) {
  std::map<std::string, std::vector<int32_t>> prompts;
  const auto bundled = nlohmann::json::parse(ReadFile(SourcePath("models/needle-14m/golden.json")));
  for (const auto& prompt : bundled["prompts"])
    prompts[prompt["name"]] = prompt["ids"].get<std::vector<int32_t>>();
  const auto golden = nlohmann::json::parse(ReadFile(SourcePath("tests/golden/logprobs/needle-14m.json")));
  const Model& model = NeedleModel(DType::kF32);
  const float tolerance = 2 * LogitTolerance(DType::kF32, BestCpuIsa());  // a logit, and the sum of all
  int forced = 0;
  for (const auto& item : golden) {
    SCOPED_TRACE(item["prompt"].get<std::string>() + ", tokens of " + item["tokens_of"].get<std::string>());
    const LocalRequest request{.ids = prompts.at(item["prompt"])};
    auto prefill = PrefillTogether(model, {request});
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    auto decoder = LocalDecoder::Create(model, /*n_slots=*/2, /*memory_bytes=*/size_t{64} << 20);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    auto kv = (*decoder)->Receive((*prefill)[0], {}, static_cast<int>(request.ids.size()));
    ASSERT_TRUE(kv.ok()) << kv.status();
    std::vector<float> logits = (*prefill)[0].logits;
    int position = static_cast<int>(request.ids.size());
    for (const auto& step : item["steps"]) {
      const int32_t token = step["token"];
      const TokenLogprobs here = LogprobsOf(logits, token, model.shape().vocab);
      EXPECT_NEAR(here.chosen, step["logprob"].get<float>(), tolerance);
      forced += token != step["top_ids"][0];
      for (size_t i = 0; i < step["top"].size(); ++i) {
        EXPECT_NEAR(here.top[i], step["top"][i].get<float>(), tolerance) << "place " << i;
        const int32_t id = step["top_ids"][i];
        const size_t place = std::find(here.top_ids.begin(), here.top_ids.end(), id) - here.top_ids.begin();
        EXPECT_NEAR(here.top[place], step["top"][i].get<float>(), tolerance) << "token " << id;
      }
      const DecodeRow row{.kv = kv->get(), .token = token, .position = LogicalLen(position++)};
      auto next = (*decoder)->Step({row});
      ASSERT_TRUE(next.ok()) << next.status();
      logits.assign((*next)[0].logits.begin(), (*next)[0].logits.end());
    }
  }
  EXPECT_GE(forced, 10);
}

}  // namespace
}  // namespace sluice
