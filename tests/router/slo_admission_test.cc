#include "router/slo_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class SloAdmissionTest : public testing::Test {
 protected:
  SloAdmissionTest() {
    query.tokens = 1000;
    terms.first_token = absl::Seconds(2);
  }
  static Candidate Prefill(int64_t tokens, double rate) {
    Candidate candidate;
    candidate.tokens = tokens;
    candidate.tokens_per_second = rate;
    return candidate;
  }
  static Candidate Decode(double seconds_per_token) {
    Candidate candidate;
    candidate.seconds_per_token = seconds_per_token;
    return candidate;
  }
  SloVerdict Judge() { return JudgeSlo(terms, spent, query, work, prefill, decode); }

  SloTerms terms;
  absl::Duration spent;
  RouteQuery query;
  std::vector<double> work = {1000};
  std::vector<Candidate> prefill = {Prefill(0, 1000)};
  std::vector<Candidate> decode = {Decode(0)};
};

TEST_F(SloAdmissionTest, WhatCanBeKeptIsTaken) {
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
  prefill[0].tokens = 999;
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
  EXPECT_TRUE(Judge().status.ok());
  EXPECT_EQ(Judge().level, 0);
}

TEST_F(SloAdmissionTest, AQueueThatIsTooLongRefusesWithATimeToComeBack) {
  prefill[0].tokens = 4000;  // 5 s in all
  const SloVerdict verdict = Judge();
  EXPECT_EQ(verdict.kind, SloVerdict::kFirstTokenTooLate);
  EXPECT_EQ(verdict.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(verdict.status), "SLO_UNREACHABLE");
  EXPECT_EQ(RetryAfterOf(verdict.status), absl::Seconds(3));
  EXPECT_THAT(std::string(verdict.status.message()),
              HasSubstr("slo.ttft_ms: the first token would come after 5000 ms"));
}

TEST_F(SloAdmissionTest, OneWorkerThatCanIsEnough) {
  prefill = {Prefill(9000, 1000), Prefill(0, 1000)};
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
  prefill[1].tokens = 9000;
  EXPECT_EQ(Judge().kind, SloVerdict::kFirstTokenTooLate);
  prefill[1].tokens_per_second = 10000;
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
}

TEST_F(SloAdmissionTest, WhatTheRequestHasWaitedAlreadyCounts) {
  spent = absl::Seconds(1.5);
  EXPECT_EQ(Judge().kind, SloVerdict::kFirstTokenTooLate);
}

TEST_F(SloAdmissionTest, WhatAWorkerHoldsNeedNotBeComputed) {
  query.tokens = 5000;
  EXPECT_EQ(Judge().kind, SloVerdict::kFirstTokenTooLate);
  prefill[0].cached_tokens = 4000;
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
}

TEST_F(SloAdmissionTest, WhereNothingIsMeasuredNothingIsRefused) {
  prefill = {Prefill(1000000, 0)};
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
  prefill.clear();
  decode.clear();
  terms.per_token = absl::Milliseconds(1);
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
}

TEST_F(SloAdmissionTest, TheFirstLoweringThatIsEnoughIsTaken) {
  query.tokens = 4000;  // 4 s as asked, 3.2, 1.6, 0.8
  work = {1000, 800, 400, 200};
  const SloVerdict verdict = Judge();
  EXPECT_EQ(verdict.kind, SloVerdict::kTake);
  EXPECT_EQ(verdict.level, 2);
  terms.first_token = absl::Seconds(5);
  EXPECT_EQ(Judge().level, 0);
  terms.first_token = absl::Seconds(0.5);
  EXPECT_EQ(Judge().kind, SloVerdict::kFirstTokenTooLate);
}

TEST_F(SloAdmissionTest, TokensAreTooSlowWhereEveryDecodeWorkerIs) {
  terms = {};
  terms.per_token = absl::Milliseconds(50);
  decode = {Decode(0.08), Decode(0.04)};
  EXPECT_EQ(Judge().kind, SloVerdict::kTake);
  decode[1].seconds_per_token = 0.06;
  const SloVerdict verdict = Judge();
  EXPECT_EQ(verdict.kind, SloVerdict::kTokensTooSlow);
  EXPECT_EQ(ReasonOf(verdict.status), "SLO_UNREACHABLE");
  EXPECT_TRUE(RetryAfterOf(verdict.status).has_value());
  EXPECT_THAT(std::string(verdict.status.message()), HasSubstr("slo.tpot_ms: a token takes 60 ms"));
}

TEST(TokensComputed, IsLessWherePropagationLeavesTokensOut) {
  ResolvedGates gates;
  EXPECT_EQ(TokensComputed(gates, 1000, 8), 1000);
  gates.propagation.kind = PropagationKind::kTsp;
  gates.propagation.layer = 3;
  gates.propagation.rows = 200;
  EXPECT_EQ(TokensComputed(gates, 1000, 8), 600);
  gates.propagation.kind = PropagationKind::kRerun;
  EXPECT_EQ(TokensComputed(gates, 1000, 8), 700);
  EXPECT_EQ(TokensComputed(gates, 100, 8), 150);
}

}  // namespace
}  // namespace sluice
