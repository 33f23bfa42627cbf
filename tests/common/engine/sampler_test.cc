#include "common/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "common/engine/philox.h"

namespace sluice {
namespace {

using Words = std::array<uint32_t, 4>;

// The vectors published with the Random123 library (tests/kat_vectors, "philox4x32 10").
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesEveryBitOfSeedAndIndex) {
  std::set<double> seen;
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(PhiloxUniform(uint64_t{1} << bit, 0));
    seen.insert(PhiloxUniform(0, uint64_t{1} << bit));
  }
  EXPECT_EQ(seen.size(), 128u);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 1);
}

int32_t Sample(std::vector<float> logits, const SamplingParams& params, const SampleState& state = {},
               int index = 0) {
  auto token = SampleToken(logits, params, state, index);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? *token : -1;
}

constexpr int kDraws = 20000;

std::map<int32_t, int> Draw(const std::vector<float>& logits, const SamplingParams& params) {
  std::map<int32_t, int> counts;
  for (int index = 0; index < kDraws; ++index) ++counts[Sample(logits, params, {}, index)];
  return counts;
}

// Pearson's statistic of kDraws draws against `weights` (unnormalised; 0: must never be drawn).
double ChiSquare(const std::map<int32_t, int>& counts, const std::vector<double>& weights) {
  double total = 0, sum = 0;
  for (double w : weights) total += w;
  for (size_t id = 0; id < weights.size(); ++id) {
    auto it = counts.find(static_cast<int32_t>(id));
    const double observed = it == counts.end() ? 0 : it->second;
    const double expected = kDraws * weights[id] / total;
    if (expected == 0) {
      EXPECT_EQ(observed, 0) << "token " << id;
    } else {
      sum += (observed - expected) * (observed - expected) / expected;
    }
  }
  return sum;
}

// 0.999 quantiles of the chi-square distribution with 1 to 7 degrees of freedom.
constexpr double kCritical[] = {0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32};

const std::vector<float> kLogits = {1.0f, -0.5f, 2.0f, 0.3f, 1.0f, -2.0f, 0.8f, 1.9f};

std::vector<double> Weights(double temperature) {
  std::vector<double> weights;
  for (float x : kLogits) weights.push_back(std::exp(x / temperature));
  return weights;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargestLogit) {
  EXPECT_EQ(Sample({0, 3, -1, 3}, {}), 1);
  EXPECT_EQ(Sample({-std::numeric_limits<float>::infinity(), -7}, {}), 1);
}

TEST(Sampler, TemperatureScalesTheDistribution) {
  for (float temperature : {0.5f, 1.0f, 1.7f}) {
    SamplingParams params{.temperature = temperature, .seed = 11};
    EXPECT_LT(ChiSquare(Draw(kLogits, params), Weights(temperature)), kCritical[7]) << temperature;
  }
}

TEST(Sampler, ChiSquareTestSeesAWrongTemperature) {
  SamplingParams params{.temperature = 1.0f, .seed = 11};
  EXPECT_GT(ChiSquare(Draw(kLogits, params), Weights(1.1)), kCritical[7]);
}

TEST(Sampler, TopKKeepsTheBestAndTheLowerIdOfATie) {
  SamplingParams params{.temperature = 1.0f, .top_k = 3, .seed = 5};
  std::vector<double> weights = Weights(1);
  for (int id : {1, 3, 4, 5, 6}) weights[id] = 0;  // 2, 7, then 0 before 4
  EXPECT_LT(ChiSquare(Draw(kLogits, params), weights), kCritical[2]);
}

TEST(Sampler, TopKBeyondTheVocabularyIsNoCut) {
  SamplingParams params{.temperature = 1.0f, .top_k = 1000, .seed = 5};
  EXPECT_LT(ChiSquare(Draw(kLogits, params), Weights(1)), kCritical[7]);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesP) {
  // Shares in descending order: .289 (2), .261 (7), .106 (0), .106 (4), .087 (6), ...
  SamplingParams params{.temperature = 1.0f, .top_p = 0.6f, .seed = 6};
  std::vector<double> weights = Weights(1);
  for (int id : {1, 3, 4, 5, 6}) weights[id] = 0;
  EXPECT_LT(ChiSquare(Draw(kLogits, params), weights), kCritical[2]);
}

TEST(Sampler, TopPIsAShareOfWhatTopKLeft) {
  // Of {2, 7, 0} token 2 has .44 and tokens 2 and 7 .84; of all, they have only .55.
  SamplingParams params{.temperature = 1.0f, .top_k = 3, .top_p = 0.8f, .seed = 7};
  std::vector<double> weights = Weights(1);
  for (int id : {0, 1, 3, 4, 5, 6}) weights[id] = 0;
  EXPECT_LT(ChiSquare(Draw(kLogits, params), weights), kCritical[1]);
}

TEST(Sampler, TopPAlwaysKeepsOne) {
  SamplingParams params{.temperature = 1.0f, .top_p = 1e-9f, .seed = 8};
  EXPECT_EQ(Draw(kLogits, params), (std::map<int32_t, int>{{2, kDraws}}));
}

TEST(Sampler, TopPOverAWideVocabularyCutsWhereTheShareIsReached) {
  std::vector<float> flat(300, 0.0f);
  SamplingParams params{.temperature = 1.0f, .top_p = 0.5f, .seed = 9};
  std::set<int32_t> seen;
  for (int index = 0; index < kDraws; ++index) seen.insert(Sample(flat, params, {}, index));
  EXPECT_EQ(*seen.rbegin(), 149);  // equal weights: the lower half of the ids
  EXPECT_EQ(seen.size(), 150u);
}

TEST(Sampler, MinPDropsWhatIsBelowAShareOfTheBest) {
  // exp(x - 2) >= .3 for x >= .796
  SamplingParams params{.temperature = 1.0f, .min_p = 0.3f, .seed = 10};
  std::vector<double> weights = Weights(1);
  for (int id : {1, 3, 5}) weights[id] = 0;
  EXPECT_LT(ChiSquare(Draw(kLogits, params), weights), kCritical[4]);
}

TEST(Sampler, MinPIsMeasuredAfterTemperature) {
  // At temperature 2 the bound falls to x >= 2 + 2 ln .3 = -.41.
  SamplingParams params{.temperature = 2.0f, .min_p = 0.3f, .seed = 10};
  std::vector<double> weights = Weights(2);
  for (int id : {1, 5}) weights[id] = 0;
  EXPECT_LT(ChiSquare(Draw(kLogits, params), weights), kCritical[5]);
}

TEST(Sampler, ADrawDependsOnSeedAndIndexOnly) {
  SamplingParams params{.temperature = 1.5f, .seed = 42};
  std::vector<int32_t> first, again, other;
  for (int i = 0; i < 64; ++i) first.push_back(Sample(kLogits, params, {}, i));
  for (int i = 63; i >= 0; --i) again.insert(again.begin(), Sample(kLogits, params, {}, i));
  params.seed = 43;
  for (int i = 0; i < 64; ++i) other.push_back(Sample(kLogits, params, {}, i));
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(Sampler, RepetitionPenaltyCountsEachIdOnceOverPromptAndOutput) {
  SampleState state;
  state.AddPrompt({0, 0, 0});
  state.AddOutput(1);
  state.AddOutput(1);
  // 4 / 2 = 2; 3 / 2 = 1.5; -1 * 2 = -2.
  EXPECT_EQ(Sample({4, 3, 1.9f, 0}, {.repetition_penalty = 2}, state), 0);
  EXPECT_EQ(Sample({4, 3, 2.1f, 0}, {.repetition_penalty = 2}, state), 2);
  EXPECT_EQ(Sample({-1, -1.5f, -1.9f}, {.repetition_penalty = 2}, state), 2);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesSeeOutputOnly) {
  SampleState state;
  state.AddPrompt({0});
  for (int i = 0; i < 3; ++i) state.AddOutput(1);
  EXPECT_EQ(Sample({1, 2, 0}, {.presence_penalty = 0.9f}, state), 1);   // 1.1
  EXPECT_EQ(Sample({1, 2, 0}, {.presence_penalty = 1.1f}, state), 0);   // .9
  EXPECT_EQ(Sample({1, 2, 0}, {.frequency_penalty = 0.3f}, state), 1);  // 1.1
  EXPECT_EQ(Sample({1, 2, 0}, {.frequency_penalty = 0.4f}, state), 0);  // .8
  EXPECT_EQ(Sample({1, 2, 0}, {.frequency_penalty = -1}, state), 1);
}

TEST(Sampler, BiasIsAddedBeforePenalties) {
  EXPECT_EQ(Sample({1, 2, 0}, {.logit_bias = {{2, 2.5f}}}), 2);
  EXPECT_EQ(Sample({1, 2, 0}, {.logit_bias = {{1, -100}, {7, 100}, {-1, 100}}}), 0);
  SampleState state;
  state.AddPrompt({2});
  // (0 + 3) / 2 = 1.5
  EXPECT_EQ(Sample({1, 2, 0}, {.repetition_penalty = 2, .logit_bias = {{2, 3}}}, state), 1);
  EXPECT_EQ(Sample({1, 2, 0}, {.repetition_penalty = 2, .logit_bias = {{2, 4.5f}}}, state), 2);
  // A share of a half for a bias of ln 2 against two others.
  SamplingParams params{.temperature = 1, .seed = 3, .logit_bias = {{0, std::log(2.0f)}}};
  EXPECT_LT(ChiSquare(Draw({1, 1, 1}, params), {2, 1, 1}), kCritical[2]);
}

TEST(Sampler, PenaltiesComeBeforeTemperature) {
  // exp((2 - 1) / .5) against exp(1 / .5): equal shares.
  SampleState state;
  state.AddOutput(1);
  SamplingParams params{.temperature = 0.5f, .presence_penalty = 1, .seed = 3};
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[Sample({1, 2}, params, state, i)];
  EXPECT_LT(ChiSquare(counts, {1, 1}), kCritical[1]);
}

TEST(Sampler, StopIdsCannotComeBeforeMinTokens) {
  SamplingParams params{.min_tokens = 2, .stop_ids = {1, 99}};
  EXPECT_EQ(Sample({1, 5, 2}, params, {}, 0), 2);
  EXPECT_EQ(Sample({1, 5, 2}, params, {}, 1), 2);
  EXPECT_EQ(Sample({1, 5, 2}, params, {}, 2), 1);
}

TEST(Sampler, IdsOutsideTheVocabularyAreIgnored) {
  SampleState state;
  state.AddPrompt({-1, 70000});
  state.AddOutput(70000);
  EXPECT_EQ(Sample({1, 2}, {.repetition_penalty = 2, .presence_penalty = 1}, state), 1);
}

TEST(Sampler, ExtremeSettingsStayFinite) {
  SampleState state;
  state.AddPrompt({0});
  SamplingParams params{.temperature = 1e-38f, .repetition_penalty = 1e-38f, .seed = 1};
  EXPECT_EQ(Sample({20, 30}, params, state), 0);
  EXPECT_EQ(Sample({0, 1, 2}, {.temperature = 1e-38f}), 2);
}

TEST(Sampler, NonFiniteLogitsAreAnInternalError) {
  const float inf = std::numeric_limits<float>::infinity();
  for (float temperature : {0.0f, 1.0f}) {
    for (std::vector<float> logits : {std::vector<float>{0, std::nanf("")}, {inf, 0}, {-inf, -inf}, {}}) {
      auto token = SampleToken(logits, {.temperature = temperature}, {}, 0);
      EXPECT_EQ(token.status(), absl::InternalError("non-finite logits"));
    }
  }
}

TEST(ForcedToken, ComesAtItsIndexAndNoLater) {
  const SamplingParams params{.forced_ids = {5, 0, 9}};
  EXPECT_EQ(ForcedToken(params, 0), 5);
  EXPECT_EQ(ForcedToken(params, 1), 0);
  EXPECT_EQ(ForcedToken(params, 2), 9);
  EXPECT_EQ(ForcedToken(params, 3), std::nullopt);
  EXPECT_EQ(ForcedToken({}, 0), std::nullopt);
}

TEST(CheckStop, StopIdWinsOverLength) {
  SamplingParams params{.max_tokens = 3, .stop_ids = {7}};
  EXPECT_EQ(CheckStop(5, params, 0), StopReason::kNone);
  EXPECT_EQ(CheckStop(5, params, 1), StopReason::kNone);
  EXPECT_EQ(CheckStop(5, params, 2), StopReason::kLength);
  EXPECT_EQ(CheckStop(7, params, 0), StopReason::kStopId);
  EXPECT_EQ(CheckStop(7, params, 2), StopReason::kStopId);
}

}  // namespace
}  // namespace sluice
