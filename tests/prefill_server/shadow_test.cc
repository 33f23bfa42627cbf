// Which prompts are measured, when, and what makes room: a manual clock, jobs without servers or wire.
#include "prefill_server/shadow.h"

#include <gtest/gtest.h>

#include "common/engine/ranked_prefill.h"
#include "tests/support/local_engine.h"
#include "tests/support/needle_prompts.h"
#include "tests/support/ranked_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

constexpr size_t kPlenty = size_t{1} << 40;

const RankedModel& Needle() {
  static const RankedTestModel loaded = LoadRanked(SourcePath("models/needle-14m"), 1);
  return *loaded.model;
}

// What a client hears behind its hand-off.
class Heard final : public PrefillEvents {
 public:
  void OnProgress(bool, int, int, int) override {}
  void OnFirstToken(const FirstToken&) override {}
  void OnHandedOff(const HandedOff&) override { order += "handed off, "; }
  void OnMeasured(const CompressionLoss& loss) override {
    order += loss.skipped.empty() ? "measured" : loss.skipped;
    last = loss;
  }
  void OnHandoffFailed(HandoffReason, const std::string&, bool, absl::Duration) override {}
  void OnError(const absl::Status&) override {}
  std::string order;
  CompressionLoss last;
};

class ShadowTest : public testing::Test {
 protected:
  void Make(double rate, size_t memory_bytes = size_t{64} << 20) {
    auto created = Shadow::Create(&Needle(), {rate, memory_bytes}, &clock_, &metrics_);
    ASSERT_TRUE(created.ok()) << created.status();
    shadow_ = *std::move(created);
  }

  // A prompt that was prefilled; its hand-off is under way.
  std::shared_ptr<PrefillJob> Prefilled(const std::string& preset, bool measure = false) {
    CompressionSpec spec;
    spec.preset = preset;
    if (preset != "full") spec.budget_tokens = 64;
    spec.min_prompt_tokens = 0;
    PrefillRequest request;
    request.prompt_ids = MakeNeedlePrompt(600, 0.4, 7).ids;
    request.gates = *ResolveFor(Needle().shape(), spec, static_cast<int>(request.prompt_ids.size()), 32);
    request.measure = measure;
    auto events = std::make_shared<Heard>();
    heard_.push_back(events);
    auto job = std::make_shared<PrefillJob>(
        request, Attempt{1, "", "", clock_.Now() + absl::Minutes(10), events}, clock_.Now());
    absl::StatusOr<RankedPrompt> prompt = PrefillRanked(Needle(), request.prompt_ids, request.gates);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    job->kept->layers = std::move(prompt->kept);
    return job;
  }

  // Rounds of a loop with nothing else to do, until nothing is left to do.
  int RunOut(size_t free_bytes = kPlenty) {
    int rounds = 0;
    do {
      shadow_->Tend();
      shadow_->Step(free_bytes);
      ++rounds;
    } while (shadow_->due());
    return rounds;
  }

  double skipped(const std::string& reason) const { return metrics_.shadow_skipped.At(reason).Value(); }
  double measured(const std::string& method) const { return metrics_.shadow_measured.At(method).Value(); }

  ManualClock clock_;
  MetricsRegistry registry_{{"prefill", "needle", "test"}};
  PrefillMetrics metrics_{&registry_, PrefillLabels{{"full", "snapkv", "streaming_llm"}, {"loopback"}}};
  std::unique_ptr<Shadow> shadow_;
  std::vector<std::shared_ptr<Heard>> heard_;
};

TEST_F(ShadowTest, APromptIsMeasuredOnceItsHandOffIsOver) {
  Make(1);
  auto job = Prefilled("snapkv");
  shadow_->Offer(job);
  RunOut();
  EXPECT_FALSE(shadow_->running());
  EXPECT_EQ(measured("snapkv"), 0);
  job->SetHandedOff({});
  // The begin, every layer, every token.
  EXPECT_EQ(RunOut(), 1 + Needle().shape().n_layers + LossMeasurement::kTokens);
  EXPECT_EQ(measured("snapkv"), 1);
  const auto& top1 = metrics_.shadow_top1_tokens.At("snapkv");
  EXPECT_EQ(top1.At("agree").Value() + top1.At("differ").Value(), LossMeasurement::kTokens);
  EXPECT_EQ(heard_[0]->order, "handed off, ");  // it did not ask
}

TEST_F(ShadowTest, WhatKeepsEverythingIsMeasuredOnlyIfItAsks) {
  Make(1);
  for (bool asks : {false, true}) {
    auto job = Prefilled("full", asks);
    shadow_->Offer(job);
    job->SetHandedOff({});
    RunOut();
    EXPECT_EQ(measured("full"), asks ? 1 : 0);
  }
  EXPECT_EQ(heard_[1]->order, "handed off, measured");
  for (float mass : heard_[1]->last.retained_mass) EXPECT_FLOAT_EQ(mass, 1);
  EXPECT_EQ(heard_[1]->last.top1_agreed, LossMeasurement::kTokens);
}

TEST_F(ShadowTest, TheRateIsTheShareThatIsPicked) {
  Make(0.25);
  const auto job = Prefilled("streaming_llm");
  for (int i = 0; i < 2000; ++i) shadow_->Offer(job);  // sixteen wait, the other ones find no room
  EXPECT_NEAR(skipped("busy") + Shadow::kMaxWaiting, 500, 60);
}

TEST_F(ShadowTest, WhatWaitsTooLongOrIsCancelledIsLetGo) {
  Make(1);
  auto late = Prefilled("snapkv"), cancelled = Prefilled("snapkv");
  for (const auto& job : {late, cancelled}) shadow_->Offer(job);
  cancelled->cancelled = true;
  shadow_->Tend();
  EXPECT_EQ(skipped("cancelled"), 1);
  clock_.Advance(Shadow::kDeadline + absl::Seconds(1));
  shadow_->Tend();
  EXPECT_EQ(skipped("deadline"), 1);
  EXPECT_EQ(late.use_count(), 1);
  EXPECT_EQ(cancelled.use_count(), 1);
}

TEST_F(ShadowTest, ACancelOrADeadlineEndsAMeasurementUnderWay) {
  Make(1);
  for (const char* why : {"cancelled", "deadline"}) {
    auto job = Prefilled("snapkv", /*measure=*/true);
    shadow_->Offer(job);
    job->SetHandedOff({});
    shadow_->Step(kPlenty);
    shadow_->Step(kPlenty);
    ASSERT_TRUE(shadow_->running());
    EXPECT_GT(shadow_->work_bytes(), 0u);
    if (std::string(why) == "cancelled") {
      job->cancelled = true;
    } else {
      clock_.Advance(absl::Minutes(11));  // its request's
    }
    shadow_->Tend();
    EXPECT_FALSE(shadow_->running());
    EXPECT_EQ(shadow_->work_bytes(), 0u);
    EXPECT_EQ(skipped(why), 1);
    EXPECT_EQ(heard_.back()->order, std::string("handed off, ") + why);
  }
}

TEST_F(ShadowTest, APromptThatLacksMemoryGetsWhatMeasurementsHold) {
  Make(1);
  auto running = Prefilled("snapkv"), waiting = Prefilled("snapkv"), sending = Prefilled("snapkv");
  for (const auto& job : {running, waiting, sending}) shadow_->Offer(job);
  running->SetHandedOff({});
  waiting->SetHandedOff({});
  shadow_->Step(kPlenty);
  ASSERT_TRUE(shadow_->running());
  shadow_->GiveWay();
  EXPECT_FALSE(shadow_->running());
  EXPECT_EQ(skipped("memory"), 2);
  EXPECT_EQ(running.use_count(), 1);
  EXPECT_EQ(waiting.use_count(), 1);
  sending->SetHandedOff({});  // it held nothing that was not its hand-off's
  RunOut();
  EXPECT_EQ(measured("snapkv"), 1);
}

TEST_F(ShadowTest, WhatDoesNotFitIsSkipped) {
  Make(1);
  auto no_scratch = Prefilled("snapkv");
  shadow_->Offer(no_scratch);
  no_scratch->SetHandedOff({});
  RunOut(/*free_bytes=*/size_t{1} << 20);
  EXPECT_EQ(skipped("memory"), 1);

  Make(1, size_t{2} << 20);
  auto no_pages = Prefilled("snapkv");
  shadow_->Offer(no_pages);
  no_pages->SetHandedOff({});
  RunOut();
  EXPECT_EQ(skipped("memory"), 2);
  EXPECT_EQ(measured("snapkv"), 0);
}

TEST_F(ShadowTest, WhoAsksHearsOfASkipOnlyBehindItsHandOff) {
  Make(1);
  auto job = Prefilled("snapkv", /*measure=*/true);
  shadow_->Offer(job);
  shadow_->Stop();
  EXPECT_EQ(heard_[0]->order, "");
  job->SetHandedOff({});
  EXPECT_EQ(heard_[0]->order, "handed off, stopping");
}

TEST_F(ShadowTest, ARateOutsideItsRangeIsRefused) {
  for (double rate : {0.0, -0.1, 1.5})
    EXPECT_TRUE(absl::IsInvalidArgument(
        Shadow::Create(&Needle(), {rate, size_t{64} << 20}, &clock_, &metrics_).status()));
}

TEST_F(ShadowTest, AMemoryThatHoldsNothingIsRefused) {
  const absl::Status status = Shadow::Create(&Needle(), {1, 1000}, &clock_, &metrics_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace sluice
