// What a prefill server measures of compression while it serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "common/compression/compression_spec.h"
#include "common/model/gate_context.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/test_model.h"
#include "tests/support/worker_pair.h"

namespace sluice {
namespace {

const RankedModel& NeedleServer() {
  static const RankedTestModel loaded = LoadRanked(SourcePath("models/needle-14m"), 1);
  return *loaded.model;
}

PairRequest Ask(const std::string& preset, bool measure, int prompt_tokens = 1500) {
  PairRequest request;
  request.prompt_ids = MakeNeedlePrompt(prompt_tokens, 0.4, 7).ids;
  CompressionSpec spec;
  spec.preset = preset;
  if (preset != "full") spec.budget_tokens = 128;
  spec.min_prompt_tokens = 0;
  spec.split_max_tokens = 32;
  absl::StatusOr<ResolvedGates> gates =
      ResolveFor(NeedleServer().shape(), spec, static_cast<int>(request.prompt_ids.size()), 12);
  EXPECT_TRUE(gates.ok()) << gates.status();
  request.gates = *gates;
  request.sampling.max_tokens = 12;
  request.measure = measure;
  return request;
}

double Mean(const v1::CompressionLoss& loss) {
  return std::accumulate(loss.retained_mass().begin(), loss.retained_mass().end(), 0.0) /
         loss.retained_mass_size();
}

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + kPatience * absl::Seconds(20);
  while (absl::Now() < end) {
    if (holds()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return holds();
}

class ShadowPair : public testing::Test {
 protected:
  void Start(double rate, size_t shadow_bytes = size_t{128} << 20) {
    prefill_ = std::make_unique<TestPrefill>(NeedleServer(), "loopback", TestPrefill::DefaultOptions(),
                                             ShadowOptions{rate, shadow_bytes});
  }
  PairReply Run(const PairRequest& request) {
    absl::StatusOr<PairReply> reply = RunPair(*prefill_, decode_, request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *reply : PairReply();
  }
  double measured(const std::string& method) const {
    return prefill_->metrics().shadow_measured.At(method).Value();
  }
  double skipped(const std::string& reason) const {
    return prefill_->metrics().shadow_skipped.At(reason).Value();
  }

  TestDecode decode_{NeedleServer(), "loopback"};
  std::unique_ptr<TestPrefill> prefill_;
};

TEST_F(ShadowPair, FullKvLosesNothing) {
  Start(1);
  const PairReply reply = Run(Ask("full", true));
  EXPECT_TRUE(reply.handed_off.measuring());
  EXPECT_EQ(reply.loss.skipped(), "");
  ASSERT_EQ(reply.loss.retained_mass_size(), NeedleServer().shape().n_layers);
  for (float mass : reply.loss.retained_mass()) EXPECT_FLOAT_EQ(mass, 1);
  EXPECT_EQ(reply.loss.top1_tokens(), LossMeasurement::kTokens);
  EXPECT_EQ(reply.loss.top1_agreed(), LossMeasurement::kTokens);
  EXPECT_EQ(measured("full"), 1);
}

TEST_F(ShadowPair, WhatDropsTheAnswerIsSeenToLoseMore) {
  Start(1);
  const PairReply ends = Run(Ask("streaming_llm", true)), points = Run(Ask("rocketkv", true));
  EXPECT_LT(Mean(ends.loss), Mean(points.loss));
  EXPECT_LT(ends.loss.top1_agreed(), points.loss.top1_agreed());
  EXPECT_EQ(points.loss.top1_agreed(), points.loss.top1_tokens());
  const auto& top1 = prefill_->metrics().shadow_top1_tokens;
  EXPECT_EQ(top1.At("rocketkv").At("differ").Value(), 0);
  EXPECT_EQ(top1.At("streaming_llm").At("agree").Value(), ends.loss.top1_agreed());
}

TEST_F(ShadowPair, AtRateOneEveryCompressedPromptIsMeasuredBehindItsReply) {
  Start(1);
  const PairReply reply = Run(Ask("rocketkv", false));
  EXPECT_FALSE(reply.handed_off.measuring());
  Run(Ask("full", false));
  EXPECT_TRUE(Eventually([&] { return measured("rocketkv") == 1; }));
  EXPECT_EQ(measured("full"), 0);
  EXPECT_TRUE(WaitIdle(*prefill_, decode_));
}

TEST_F(ShadowPair, AnswersAreTheSameAtAnyRate) {
  std::vector<std::vector<int32_t>> answers;
  for (double rate : {0.0, 1.0}) {
    Start(rate);
    std::vector<PairRequest> requests;
    for (int i = 0; i < 6; ++i)
      requests.push_back(Ask(i % 2 == 0 ? "rocketkv" : "snapkv", false, 400 + 200 * i));
    for (const std::vector<int32_t>& ids : RunTogether(*prefill_, decode_, requests)) answers.push_back(ids);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(answers[i].size(), 12u);
    EXPECT_EQ(answers[i], answers[6 + i]) << i;
  }
}

TEST_F(ShadowPair, AtRateZeroNothingIsMeasuredAndWhoAsksIsToldWhatToChange) {
  Start(0);
  Run(Ask("rocketkv", false));
  const absl::Status refused = RunPair(*prefill_, decode_, Ask("rocketkv", true)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.ToString(), testing::HasSubstr("--shadow-rate"));
  EXPECT_EQ(measured("rocketkv"), 0);
  for (const char* reason : {"memory", "busy", "deadline", "cancelled", "error", "stopping"})
    EXPECT_EQ(skipped(reason), 0) << reason;
}

TEST_F(ShadowPair, APromptThatIsTooLongForTheMemoryIsServedAndSkipped) {
  Start(1, size_t{3} << 20);
  const PairReply reply = Run(Ask("rocketkv", true));
  EXPECT_EQ(reply.ids.size(), 12u);
  EXPECT_EQ(reply.loss.skipped(), "memory");
  EXPECT_EQ(reply.loss.retained_mass_size(), 0);
  EXPECT_EQ(skipped("memory"), 1);
}

TEST_F(ShadowPair, ATurnOfASessionIsMeasuredAgainstItsWholeText) {
  Start(1);
  PairRequest turn = Ask("rocketkv", true, 1200);
  turn.gates.history = HistoryKind::kKeep;
  turn.session_id = "s";
  turn.turn_id = "t1";
  const PairReply first = Run(turn);
  PairRequest next = Ask("rocketkv", true, 1200);
  next.gates.history = HistoryKind::kKeep;
  next.prompt_ids.insert(next.prompt_ids.end(), first.ids.begin(), first.ids.end());
  next.prompt_ids.insert(next.prompt_ids.end(), turn.prompt_ids.end() - 64, turn.prompt_ids.end());
  next.session_id = "s";
  next.parent_turn_id = "t1";
  next.turn_id = "t2";
  const PairReply second = Run(next);
  EXPECT_GT(second.first.cached_tokens(), 0);
  EXPECT_EQ(second.loss.skipped(), "");
  EXPECT_EQ(second.loss.retained_mass_size(), NeedleServer().shape().n_layers);
  EXPECT_GT(second.loss.top1_tokens(), 0);
}

TEST_F(ShadowPair, WhoGoesAwayIsNotMeasured) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "too fast to go away from";
  Start(1);
  PairRequest request = Ask("rocketkv", true, 6000);
  request.cancel_after = absl::Milliseconds(150);
  EXPECT_FALSE(RunPair(*prefill_, decode_, request).ok());
  EXPECT_TRUE(WaitIdle(*prefill_, decode_));
  EXPECT_EQ(measured("rocketkv"), 0);
}

}  // namespace
}  // namespace sluice
