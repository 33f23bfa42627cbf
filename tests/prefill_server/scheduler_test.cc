#include "prefill_server/scheduler.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

const SchedulerOptions kOptions{.short_tokens = 100, .max_batch_tokens = 250, .max_batch_prompts = 3};

Decision DecideFor(std::vector<QueuedPrompt> queue, bool long_pass = false, bool short_pass = false,
                   bool owed = false) {
  return Decide({queue, long_pass, short_pass, owed}, kOptions);
}

TEST(Scheduler, WaitsForNothing) { EXPECT_EQ(DecideFor({}).kind, Decision::kWait); }

TEST(Scheduler, ShortPromptsShareAPassWithinItsLimits) {
  Decision by_tokens = DecideFor({{100}, {100}, {60}, {10}});
  EXPECT_EQ(by_tokens.kind, Decision::kStart);
  EXPECT_FALSE(by_tokens.is_long);
  EXPECT_EQ(by_tokens.start, (std::vector<int>{0, 1}));  // in order: nobody overtakes the 60
  EXPECT_EQ(DecideFor({{1}, {1}, {1}, {1}}).start.size(), 3u);
}

TEST(Scheduler, ALongPromptRunsAlone) {
  Decision decision = DecideFor({{101}, {5}});
  EXPECT_EQ(decision.kind, Decision::kStart);
  EXPECT_TRUE(decision.is_long);
  EXPECT_EQ(decision.start, std::vector<int>{0});
}

TEST(Scheduler, ALongPassGivesWayToShortPromptsButNotTwiceInARow) {
  EXPECT_EQ(DecideFor({{5}}, /*long_pass=*/true).kind, Decision::kStart);
  EXPECT_EQ(DecideFor({{5}}, true, /*short_pass=*/true).kind, Decision::kRunShort);
  EXPECT_EQ(DecideFor({{5}}, true, false, /*owed=*/true).kind, Decision::kRunLong);
}

TEST(Scheduler, ASecondLongPromptWaitsWhileShortOnesBehindItGo) {
  Decision decision = DecideFor({{500}, {5}}, /*long_pass=*/true);
  EXPECT_EQ(decision.kind, Decision::kStart);
  EXPECT_EQ(decision.start, std::vector<int>{1});
  EXPECT_EQ(DecideFor({{500}}, true).kind, Decision::kRunLong);
}

TEST(Scheduler, WhatDoesNotFitWaits) {
  EXPECT_EQ(DecideFor({{500, false}}).kind, Decision::kWait);
  EXPECT_EQ(DecideFor({{500, false}, {5}}).start, std::vector<int>{1});
  EXPECT_EQ(DecideFor({{5, false}}, /*long_pass=*/true).kind, Decision::kRunLong);
}

}  // namespace
}  // namespace sluice
