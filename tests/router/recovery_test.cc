// Workers that fail, through real RPC: the client gets each token once.
#include <gmock/gmock.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAreArray;

TEST_F(RouterTest, DecodeDiesAfterSomeTokensAndAnotherPairGoesOn) {
  StartRouter();
  std::vector<int32_t> words = Reply("one two three four five");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.ServeThreeAndDie(words);
  });
  SeenReply reply = Stream(Ask("count"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "one two three four five");
  EXPECT_EQ(reply.ids, words);
  EXPECT_EQ(reply.done.attempts(), 2);
  std::vector<FakeAttempt> attempts = workers_.attempts();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1].prefill_request.emitted(), 3);
  EXPECT_THAT(attempts[1].generate_request.emitted_ids(), ElementsAreArray({words[0], words[1], words[2]}));
  std::vector<int32_t> replayed(attempts[0].prefill_request.prompt_ids().begin(),
                                attempts[0].prefill_request.prompt_ids().end());
  replayed.insert(replayed.end(), words.begin(), words.begin() + 3);
  EXPECT_THAT(attempts[1].prefill_request.prompt_ids(), ElementsAreArray(replayed));
  EXPECT_NE(attempts[1].decode_name, attempts[0].decode_name);
  EXPECT_FALSE(attempts[1].prefill_request.reuse_kept());
  EXPECT_EQ(attempts[1].prefill_request.handoff_id(), attempts[0].prefill_request.handoff_id());
  EXPECT_GT(attempts[1].prefill_request.attempt(), attempts[0].prefill_request.attempt());
}

TEST_F(RouterTest, AFailedHandOffIsServedFromTheKeptSetByAnotherDecode) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    std::vector<int32_t> words = Reply("kept and sent again");
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.FirstToken(words[0]);
    attempt.HandoffFailed("peer_lost", true);
  });
  SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.ids, Reply("kept and sent again"));
  std::vector<FakeAttempt> attempts = workers_.attempts();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_TRUE(attempts[1].prefill_request.reuse_kept());
  EXPECT_EQ(attempts[1].prefill_request.emitted(), 0);
  EXPECT_EQ(attempts[1].prefill_name, attempts[0].prefill_name);
  EXPECT_NE(attempts[1].decode_name, attempts[0].decode_name);
}

TEST_F(RouterTest, AKilledPrefillIsReplacedInTheMiddleOfTheTransfer) {
  StartRouter();
  std::vector<int32_t> words = Reply("again from the start");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.FirstToken(words[0]);
    Later([this, name = attempt.prefill_name] { workers_.Kill(name); });
  });
  SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.ids, words);
  EXPECT_NE(workers_.attempts()[1].prefill_name, workers_.attempts()[0].prefill_name);
}

TEST_F(RouterTest, AKilledDecodeIsReplacedByOneThatComesLater) {
  StartRouter(nullptr, {"p1", "d1"});
  std::vector<int32_t> words = Reply("a successor takes over");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.FirstToken(words[0]);
    attempt.Receiving();
    attempt.HandedOff();
    attempt.Tokens(1, {words[1]});
    Later([this] {
      absl::SleepFor(absl::Milliseconds(100));
      workers_.Kill("d1");
      AddWorker("d2");
    });
  });
  SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.ids, words);
}

TEST_F(RouterTest, WithoutASuccessorTheWorkerIsLost) {
  StartRouter(nullptr, {"p1", "d1"});
  workers_.SetScript([this](const FakeAttempt& attempt) {
    std::vector<int32_t> words = Reply("this never ends well");
    attempt.FirstToken(words[0]);
    attempt.Receiving();
    attempt.HandedOff();
    Later([this] {
      absl::SleepFor(absl::Milliseconds(100));
      workers_.Kill("d1");
    });
  });
  SeenReply reply = Stream(Ask("hi"));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::ABORTED) << reply.status.error_message();
  EXPECT_EQ(ReasonOf(FromGrpcStatus(reply.status)), "WORKER_LOST");
  EXPECT_FALSE(reply.text.empty());
}

TEST_F(RouterTest, WithoutWorkersARequestIsUnavailableAtOnce) {
  StartRouter(nullptr, {});
  SeenReply reply = Stream(Ask("hi"));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(reply.status)).has_value());
}

TEST_F(RouterTest, ABusyDecodeEndsInResourceExhausted) {
  StartRouter(nullptr, {"p1", "d1"});
  workers_.SetScript([](const FakeAttempt& attempt) { attempt.HandoffFailed("busy", true); });
  SeenReply reply = Stream(Ask("hi"));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << reply.status.error_message();
  EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(reply.status)).has_value());
  EXPECT_GT(workers_.attempts().size(), 1u);
}

TEST_F(RouterTest, PrefillHearsWhereDecodeWorkersAre) {
  StartRouter(nullptr, {"d1", "d2"});
  const auto hears = [this](const std::string& name, std::vector<std::string> addresses) {
    for (absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
      if (workers_.heard(name) == addresses) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  };
  AddWorker("p1");
  EXPECT_TRUE(hears("p1", {workers_.address("d1"), workers_.address("d2")}));
  EXPECT_TRUE(workers_.heard("d1").empty());
  workers_.Kill("d1");
  AwaitWorkers(1, 1);
  AddWorker("p2");
  EXPECT_TRUE(hears("p2", {workers_.address("d2")}));
}

TEST_F(RouterTest, AWorkerOfAnotherModelNeverServes) {
  StartRouter(nullptr, {});
  internal::v1::ModelIdentity other = model_.identity;
  other.set_weights_hash("something else");
  FakeWorkers strangers(other);
  strangers.Add("prefill", "p1", router_->internal_port());
  strangers.Add("decode", "d1", router_->internal_port());
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(metrics_.prefill_workers.ready.Value(), 0);
  EXPECT_EQ(metrics_.decode_workers.ready.Value(), 0);
}

}  // namespace
}  // namespace sluice
