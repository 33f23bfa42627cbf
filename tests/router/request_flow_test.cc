// Every way a request can go, by a hand-moved clock and a hand-made cluster.
#include "router/request_flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

WorkerRef Worker(const std::string& name) { return {name, name + "-1", name + ":1"}; }

// Workers in the order they are preferred.
class FakePicker : public WorkerPicker {
 public:
  std::vector<WorkerRef> prefill = {Worker("p1"), Worker("p2")};
  std::vector<WorkerRef> decode = {Worker("d1"), Worker("d2")};
  std::set<std::string> avoided;

  absl::StatusOr<WorkerRef> Pick(WorkerRole role, const RouteQuery& query,
                                 const std::set<std::string>& excluded) override {
    const std::vector<WorkerRef>& workers = role == WorkerRole::kPrefill ? prefill : decode;
    if (workers.empty()) return absl::UnavailableError("no ready worker");
    for (const WorkerRef& worker : workers) {
      if (!avoided.count(worker.incarnation) && !excluded.count(worker.incarnation)) return worker;
    }
    return absl::ResourceExhaustedError("all busy");
  }
  bool Usable(const WorkerRef& worker) override {
    return !avoided.count(worker.incarnation) && std::count(prefill.begin(), prefill.end(), worker) +
                                                         std::count(decode.begin(), decode.end(), worker) >
                                                     0;
  }
  void Avoid(const WorkerRef& worker, absl::Duration) override { avoided.insert(worker.incarnation); }
};

class RequestFlowTest : public testing::Test {
 protected:
  RequestFlowTest() { Make({}); }

  void Make(const FlowOptions& options) {
    FlowRequest request;
    request.max_tokens = 100;
    request.stop_ids = {7};
    request.deadline = now + absl::Seconds(60);
    flow = std::make_unique<RequestFlow>(request, options, &picker);
  }

  // Keeps what the client would see and the state of the calls, and returns the names of what was asked for.
  std::vector<std::string> Do(FlowActions actions) {
    std::vector<std::string> names;
    for (const FlowAction& action : actions) {
      if (auto* open = std::get_if<OpenDecode>(&action)) {
        names.push_back("open " + open->decode.name);
        decode_base = open->emitted;
      } else if (auto* open = std::get_if<OpenPrefill>(&action)) {
        names.push_back((open->reuse_kept ? "reuse " : "prefill ") + open->prefill.name + ">" +
                        open->decode.name);
        prefill_base = open->emitted;
      } else if (std::get_if<CancelDecode>(&action)) {
        names.push_back("cancel decode");
      } else if (std::get_if<CancelPrefill>(&action)) {
        names.push_back("cancel prefill");
      } else if (auto* emit = std::get_if<EmitTokens>(&action)) {
        tokens.insert(tokens.end(), emit->ids.begin(), emit->ids.end());
      } else if (auto* wake = std::get_if<WakeAt>(&action)) {
        wakes.push_back(wake->time);
      } else if (auto* complete = std::get_if<Complete>(&action)) {
        names.push_back("complete");
        end = complete->end;
        ++terminals;
      } else if (auto* fail = std::get_if<Fail>(&action)) {
        names.push_back("fail");
        status = fail->status;
        ++terminals;
      }
    }
    return names;
  }

  // Up to the first token of the current attempt.
  void RunToFirstToken(int32_t id) {
    Do(flow->Registered(flow->attempt()));
    Do(flow->FirstToken(flow->attempt(), id, false, false, now));
  }
  void RunToDecode(int32_t id) {
    RunToFirstToken(id);
    Do(flow->HandedOff(flow->attempt(), false, now));
    Do(flow->Receiving(flow->attempt()));
  }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  FakePicker picker;
  std::unique_ptr<RequestFlow> flow;
  std::vector<int32_t> tokens;
  std::vector<absl::Time> wakes;
  FlowEnd end;
  absl::Status status;
  int terminals = 0;
  int decode_base = -1, prefill_base = -1;
};

TEST_F(RequestFlowTest, PrefillIsCalledOnlyAfterDecodeHasRegistered) {
  EXPECT_THAT(Do(flow->Start(now)), ElementsAre("open d1"));
  EXPECT_THAT(Do(flow->Registered(1)), ElementsAre("prefill p1>d1"));
  EXPECT_THAT(Do(flow->Registered(1)), ElementsAre());
}

TEST_F(RequestFlowTest, DecodeTokensWaitForTheFirstToken) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  Do(flow->Tokens(1, 1, {11, 12}, now));
  Do(flow->Generated(1, {FlowEnd::kLength}, now));
  EXPECT_THAT(tokens, ElementsAre());
  Do(flow->FirstToken(1, 10, false, false, now));
  EXPECT_THAT(tokens, ElementsAre(10, 11, 12));
  EXPECT_EQ(terminals, 0);  // the report is on its way
  EXPECT_THAT(Do(flow->HandedOff(1, false, now)), ElementsAre("complete"));
}

TEST_F(RequestFlowTest, APrefillReportThatNeverComesDelaysTheEndOnlySoLong) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->Tokens(1, 1, {11}, now));
  Do(flow->Generated(1, {FlowEnd::kLength}, now));
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(1))), ElementsAre());
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(2))), ElementsAre("cancel prefill", "complete"));
}

TEST_F(RequestFlowTest, TheEndWaitsForAMeasurementUntilTheDeadline) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->Tokens(1, 1, {11}, now));
  Do(flow->Generated(1, {FlowEnd::kLength}, now));  // prefill's report is not here yet
  EXPECT_THAT(Do(flow->HandedOff(1, true, now)), ElementsAre());
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(30))), ElementsAre());
  EXPECT_THAT(Do(flow->Measured(1, now)), ElementsAre("complete"));

  Make({});
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->HandedOff(1, true, now));
  Do(flow->Generated(1, {FlowEnd::kLength}, now));
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(60))), ElementsAre("cancel prefill", "complete"));
}

TEST_F(RequestFlowTest, AMeasurementThatIsThereBeforeTheLastTokenDelaysNothing) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->HandedOff(1, true, now));
  EXPECT_THAT(Do(flow->Measured(1, now)), ElementsAre());
  EXPECT_THAT(Do(flow->PrefillEnded(1, absl::OkStatus(), now)), ElementsAre());
  EXPECT_THAT(Do(flow->Generated(1, {FlowEnd::kLength}, now)), ElementsAre("complete"));
}

TEST_F(RequestFlowTest, AMeasurementThatCannotComeIsNotWaitedFor) {
  for (bool lease : {false, true}) {
    Make({});
    Do(flow->Start(now));
    RunToFirstToken(10);
    Do(flow->HandedOff(1, true, now));
    Do(flow->Generated(1, {FlowEnd::kLength}, now));
    if (lease) {
      EXPECT_THAT(Do(flow->WorkerLost("p1-1", now)), ElementsAre("cancel prefill", "complete"));
    } else {
      EXPECT_THAT(Do(flow->PrefillEnded(1, absl::UnavailableError("gone"), now)), ElementsAre("complete"));
    }
  }
}

TEST_F(RequestFlowTest, AClientThatLeavesAndADecodeThatDiesEndTheMeasurement) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->HandedOff(1, true, now));
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::UnavailableError(""), now)),
              ElementsAre("cancel prefill", "open d2"));
  EXPECT_THAT(Do(flow->Measured(1, now)), ElementsAre());  // of the attempt before
  Do(flow->Registered(2));
  Do(flow->FirstToken(2, 11, false, false, now));
  Do(flow->HandedOff(2, true, now));
  EXPECT_THAT(Do(flow->Cancel()), ElementsAre("cancel decode", "cancel prefill", "fail"));
}

TEST_F(RequestFlowTest, AStopStringStillWaitsForTheMeasurement) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->HandedOff(1, true, now));
  EXPECT_THAT(Do(flow->StopString()), ElementsAre("cancel decode"));
  EXPECT_THAT(Do(flow->Measured(1, now)), ElementsAre("complete"));
}

TEST_F(RequestFlowTest, AFirstTokenThatEndsTheTurnClosesDecode) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  EXPECT_THAT(Do(flow->FirstToken(1, 7, true, true, now)), ElementsAre("cancel decode"));
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::CancelledError(""), now)), ElementsAre());
  EXPECT_THAT(Do(flow->PrefillEnded(1, absl::OkStatus(), now)), ElementsAre("complete"));
  EXPECT_THAT(tokens, ElementsAre(7));
  EXPECT_EQ(end.reason, FlowEnd::kStopId);
  EXPECT_EQ(end.stop_id, 7);
}

TEST_F(RequestFlowTest, DecodeDiesAfterCommitAndTheTokensAreReplayedBehindTheFence) {
  Do(flow->Start(now));
  RunToDecode(10);
  Do(flow->Tokens(1, 1, {11, 12}, now));
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::UnavailableError("socket closed"), now)), ElementsAre("open d2"));
  EXPECT_EQ(decode_base, 3);
  EXPECT_THAT(Do(flow->Registered(2)), ElementsAre("prefill p1>d2"));
  EXPECT_EQ(prefill_base, 3);
  Do(flow->FirstToken(2, 13, false, false, now));
  Do(flow->HandedOff(2, false, now));
  Do(flow->Tokens(2, 4, {14}, now));
  EXPECT_THAT(Do(flow->Generated(2, {FlowEnd::kStopId, 14}, now)), ElementsAre("complete"));
  EXPECT_THAT(tokens, ElementsAre(10, 11, 12, 13, 14));
}

TEST_F(RequestFlowTest, EventsOfAnEarlierAttemptChangeNothing) {
  Do(flow->Start(now));
  RunToDecode(10);
  Do(flow->DecodeEnded(1, absl::UnavailableError(""), now));
  Do(flow->Registered(2));
  EXPECT_TRUE(Do(flow->Tokens(1, 1, {99}, now)).empty());
  EXPECT_TRUE(Do(flow->FirstToken(1, 99, true, true, now)).empty());
  EXPECT_TRUE(Do(flow->Generated(1, {}, now)).empty());
  EXPECT_TRUE(Do(flow->PrefillEnded(1, absl::InternalError(""), now)).empty());
  EXPECT_THAT(tokens, ElementsAre(10));
}

TEST_F(RequestFlowTest, AFailedHandOffGoesToAnotherDecodeFromTheKeptSet) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  EXPECT_THAT(Do(flow->HandoffFailed(1, {.reason = "peer_lost", .retained = true}, now)),
              ElementsAre("cancel decode", "open d2"));
  EXPECT_THAT(Do(flow->Registered(2)), ElementsAre("reuse p1>d2"));
  EXPECT_EQ(prefill_base, 0);  // the kept set is of the prompt alone
  Do(flow->Tokens(2, 1, {11}, now));
  Do(flow->FirstToken(2, 10, false, false, now));  // said again
  EXPECT_THAT(tokens, ElementsAre(10, 11));
  Do(flow->HandedOff(2, false, now));
  EXPECT_THAT(Do(flow->Generated(2, {FlowEnd::kLength}, now)), ElementsAre("complete"));
}

TEST_F(RequestFlowTest, DecodeDiesDuringTheTransferAndPrefillDecides) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::UnavailableError(""), now)), ElementsAre());
  EXPECT_THAT(Do(flow->HandoffFailed(1, {.reason = "peer_lost", .retained = true}, now)),
              ElementsAre("open d2"));
  EXPECT_THAT(Do(flow->Registered(2)), ElementsAre("reuse p1>d2"));
}

TEST_F(RequestFlowTest, DecodeDiesWhileItsCommitIsOnTheWay) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->DecodeEnded(1, absl::UnavailableError(""), now));
  EXPECT_THAT(Do(flow->HandedOff(1, false, now)), ElementsAre("open d2"));
  EXPECT_EQ(decode_base, 1);
  EXPECT_THAT(Do(flow->Registered(2)), ElementsAre("prefill p1>d2"));
}

TEST_F(RequestFlowTest, AKeptSetThatIsGoneMeansANewPrefill) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->HandoffFailed(1, {.reason = "peer_lost", .retained = true}, now));
  Do(flow->Registered(2));
  EXPECT_THAT(Do(flow->PrefillEnded(2, absl::NotFoundError("no such kept set"), now)),
              ElementsAre("cancel decode", "open d2"));
  EXPECT_THAT(Do(flow->Registered(3)), ElementsAre("prefill p1>d2"));
  EXPECT_EQ(prefill_base, 1);
}

TEST_F(RequestFlowTest, PrefillDiesDuringTheTransfer) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  EXPECT_THAT(Do(flow->PrefillEnded(1, absl::UnavailableError(""), now)),
              ElementsAre("cancel decode", "open d1"));
  EXPECT_EQ(decode_base, 1);
  EXPECT_THAT(Do(flow->Registered(2)), ElementsAre("prefill p2>d1"));
}

TEST_F(RequestFlowTest, PrefillDiesWhenDecodeHasEverything) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->Receiving(1));
  EXPECT_THAT(Do(flow->PrefillEnded(1, absl::UnavailableError(""), now)), ElementsAre());
  Do(flow->Tokens(1, 1, {11}, now));
  EXPECT_THAT(Do(flow->Generated(1, {FlowEnd::kLength}, now)), ElementsAre("complete"));
  EXPECT_THAT(tokens, ElementsAre(10, 11));
}

TEST_F(RequestFlowTest, ADecodeThatDiesAfterTheLastTokenIsForgiven) {
  Do(flow->Start(now));
  RunToDecode(10);
  Do(flow->Tokens(1, 1, {11, 7}, now));
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::UnavailableError(""), now)), ElementsAre("complete"));
  EXPECT_EQ(end.reason, FlowEnd::kStopId);
}

TEST_F(RequestFlowTest, NoPairAfterALossIsWorkerLostAfterTheWait) {
  Do(flow->Start(now));
  RunToDecode(10);
  picker.decode.clear();
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::UnavailableError("socket closed"), now)), ElementsAre());
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(14))), ElementsAre());
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(15))), ElementsAre("fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(status), "WORKER_LOST");
}

TEST_F(RequestFlowTest, ASuccessorThatComesInTimeGoesOn) {
  Do(flow->Start(now));
  RunToDecode(10);
  picker.decode.clear();
  Do(flow->DecodeEnded(1, absl::UnavailableError(""), now));
  picker.decode = {Worker("d3")};
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(3))), ElementsAre("open d3"));
}

TEST_F(RequestFlowTest, WithoutWorkersANewRequestFailsAtOnceAndMayBeRetried) {
  picker.prefill.clear();
  EXPECT_THAT(Do(flow->Start(now)), ElementsAre("fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
}

TEST_F(RequestFlowTest, BusyWorkersAreWaitedForThenRefusedWithRetryInfo) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  picker.decode = {Worker("d1")};
  EXPECT_THAT(Do(flow->HandoffFailed(1, {.reason = "busy", .retained = true}, now)),
              ElementsAre("cancel decode"));
  ASSERT_FALSE(wakes.empty());
  EXPECT_EQ(wakes.back(), now + absl::Milliseconds(50));
  Do(flow->Wake(wakes.back()));
  EXPECT_EQ(wakes.back(), now + absl::Milliseconds(150));
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(30))), ElementsAre("fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
}

TEST_F(RequestFlowTest, AWorkerThatIsBusyAgainAndAgainIsNotAskedForEver) {
  FlowOptions options;
  options.busy_wait = absl::Seconds(10);
  Make(options);
  Do(flow->Start(now));
  for (int seconds = 0; seconds < 10; ++seconds) {
    ASSERT_EQ(terminals, 0) << seconds;
    Do(flow->Registered(flow->attempt()));
    Do(flow->HandoffFailed(flow->attempt(), {.reason = "busy", .retained = true},
                           now + absl::Seconds(seconds)));
    picker.avoided.clear();
    Do(flow->Wake(now + absl::Seconds(seconds + 1)));
  }
  Do(flow->Registered(flow->attempt()));
  Do(flow->HandoffFailed(flow->attempt(), {.reason = "busy", .retained = true}, now + absl::Seconds(10)));
  EXPECT_EQ(terminals, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
}

TEST_F(RequestFlowTest, AKeptSetThatFitsNoDecodeSaysWhatToChange) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  Do(flow->HandoffFailed(1, {.reason = "too_large", .retained = true}, now));
  Do(flow->Registered(2));
  EXPECT_THAT(Do(flow->HandoffFailed(2, {.reason = "too_large", .retained = true}, now)),
              ElementsAre("cancel decode", "fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("budget_tokens"));
}

TEST_F(RequestFlowTest, ARequestThatKillsWorkersIsGivenUp) {
  FlowOptions options;
  options.max_attempts = 3;
  Make(options);
  Do(flow->Start(now));
  for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
    picker.avoided.clear();
    Do(flow->Registered(attempt));
    Do(flow->PrefillEnded(attempt, absl::UnavailableError("socket closed"), now));
  }
  EXPECT_EQ(terminals, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(RequestFlowTest, TheDeadlineCancelsBothSides) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(60))),
              ElementsAre("cancel decode", "cancel prefill", "fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RequestFlowTest, CancelStopsBothSidesAndNothingFollows) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  EXPECT_THAT(Do(flow->Cancel()), ElementsAre("cancel decode", "cancel prefill", "fail"));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  Do(flow->Tokens(1, 1, {11}, now));
  Do(flow->Generated(1, {}, now));
  Do(flow->HandedOff(1, false, now));
  Do(flow->Wake(now + absl::Hours(1)));
  Do(flow->Cancel());
  EXPECT_EQ(terminals, 1);
  EXPECT_THAT(tokens, ElementsAre(10));
}

TEST_F(RequestFlowTest, AStopStringCancelsDecodeAndEndsWithPrefillsReport) {
  Do(flow->Start(now));
  RunToFirstToken(10);
  Do(flow->Receiving(1));
  Do(flow->Tokens(1, 1, {11}, now));
  EXPECT_THAT(Do(flow->StopString()), ElementsAre("cancel decode"));
  Do(flow->Tokens(1, 2, {12}, now));
  EXPECT_THAT(Do(flow->HandedOff(1, false, now)), ElementsAre("complete"));
  EXPECT_THAT(tokens, ElementsAre(10, 11));
  EXPECT_EQ(end.reason, FlowEnd::kStopString);
}

TEST_F(RequestFlowTest, RepeatedTokensAreDroppedAndAGapIsAFailure) {
  Do(flow->Start(now));
  RunToDecode(10);
  Do(flow->Tokens(1, 1, {11, 12}, now));
  Do(flow->Tokens(1, 2, {12, 13}, now));
  EXPECT_THAT(tokens, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(Do(flow->Tokens(1, 9, {19}, now)), ElementsAre("cancel decode", "open d2"));
}

TEST_F(RequestFlowTest, WhatIsTheRequestsFaultIsNotRetried) {
  Do(flow->Start(now));
  Do(flow->Registered(1));
  EXPECT_THAT(Do(flow->PrefillEnded(1, absl::InvalidArgumentError("gates: no"), now)),
              ElementsAre("cancel decode", "fail"));
  EXPECT_EQ(status, absl::InvalidArgumentError("gates: no"));
}

TEST_F(RequestFlowTest, NonFiniteLogitsAreNotRetried) {
  Do(flow->Start(now));
  RunToDecode(10);
  absl::Status bad = WithReason(absl::InternalError("non-finite logits"), "NON_FINITE_LOGITS");
  EXPECT_THAT(Do(flow->DecodeEnded(1, bad, now)), ElementsAre("fail"));
  EXPECT_EQ(status, bad);
}

TEST_F(RequestFlowTest, ALeaseThatRunsOutIsALoss) {
  Do(flow->Start(now));
  RunToDecode(10);
  EXPECT_THAT(Do(flow->WorkerLost("p1-1", now)), ElementsAre());  // it has done its part
  EXPECT_THAT(Do(flow->WorkerLost("d1-1", now)), ElementsAre("cancel decode", "open d2"));
}

TEST_F(RequestFlowTest, ADecodeThatNeverAnswersIsLeft) {
  Do(flow->Start(now));
  EXPECT_THAT(Do(flow->Wake(now + absl::Seconds(5))), ElementsAre("cancel decode", "open d2"));
}

TEST_F(RequestFlowTest, PreemptionByDecodeIsReplayedAndCountsAsNoFailure) {
  FlowOptions options;
  options.max_attempts = 1;
  Make(options);
  Do(flow->Start(now));
  RunToDecode(10);
  EXPECT_THAT(Do(flow->DecodeEnded(1, absl::ResourceExhaustedError("preempted"), now)),
              ElementsAre("open d2"));
  EXPECT_EQ(decode_base, 1);
}

}  // namespace
}  // namespace sluice
