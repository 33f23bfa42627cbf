// Several answers to one prompt: n runs, one reply.
#include <gmock/gmock.h>

#include <atomic>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "router/request_plan.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 42;

class ChoicesTest : public RouterTest {
 protected:
  ChoicesTest() {
    workers_.SetScript([this](const FakeAttempt& attempt) { attempt.Serve(Words(ChoiceOf(attempt))); });
  }
  static v1::ChatRequest AskFor(int n) {
    v1::ChatRequest request = Ask("hi");
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(kSeed);
    request.mutable_sampling()->set_n(n);
    return request;
  }
  // By its seed, as the model would answer.
  static int ChoiceOf(const FakeAttempt& attempt) {
    int choice = 0;
    while (ChoiceSeed(kSeed, choice) != attempt.prefill_request.sampling().seed()) {
      if (++choice == 8) ADD_FAILURE() << "a seed of no choice";
      if (choice == 8) return 0;
    }
    return choice;
  }
  static std::string TextOf(int choice) {
    static constexpr const char* kTexts[] = {"hello there", "good day", "who goes there now"};
    return choice < 3 ? kTexts[choice] : absl::StrCat("choice ", choice);
  }
  std::vector<int32_t> Words(int choice) { return Reply(TextOf(choice)); }
  static std::map<int, std::string> TextsOf(const SeenReply& reply) {
    std::map<int, std::string> texts;
    for (const v1::ChatEvent& event : reply.events) {
      if (event.has_delta()) texts[event.delta().index()] += event.delta().text();
    }
    return texts;
  }
  static int Count(const SeenReply& reply, v1::ChatEvent::EventCase what) {
    return static_cast<int>(std::count_if(reply.events.begin(), reply.events.end(),
                                          [&](const v1::ChatEvent& e) { return e.event_case() == what; }));
  }
  bool WorkersAreFree(int calls) {
    return Eventually([&] {
      return router_->requests_in_flight() == 0 &&
             workers_.cancelled_prefills() + workers_.cancelled_decodes() >= calls;
    });
  }
};

TEST_F(ChoicesTest, AreAnswersOfTheirOwnInOneReply) {
  StartRouter();
  SeenReply reply = Stream(AskFor(3));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_THAT(TextsOf(reply), ElementsAre(testing::Pair(0, TextOf(0)), testing::Pair(1, TextOf(1)),
                                          testing::Pair(2, TextOf(2))));
  EXPECT_EQ(Count(reply, v1::ChatEvent::kStarted), 1);
  EXPECT_EQ(reply.events[0].started().sampling().n(), 3);
  EXPECT_EQ(reply.events[0].started().sampling().seed(), kSeed);
  ASSERT_EQ(reply.done.choices_size(), 3);
  int tokens = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reply.done.choices(i).index(), i);
    EXPECT_EQ(reply.done.choices(i).finish_reason(), v1::STOP_EOS);
    tokens += static_cast<int>(Words(i).size());
  }
  ASSERT_EQ(workers_.attempts().size(), 3u);
  EXPECT_EQ(reply.done.usage().completion_tokens(), tokens);
  EXPECT_EQ(reply.done.usage().prompt_tokens(), workers_.attempts()[0].prefill_request.prompt_ids_size());
  EXPECT_EQ(reply.done.usage().cached_tokens(), 3);
  EXPECT_EQ(reply.done.compression().wire_bytes(), 3 * 1100u);
  EXPECT_EQ(reply.done.compression().kept_tokens_min(), 11);
  EXPECT_EQ(reply.done.attempts(), 1);
  ExpectCounted("OK");
}

TEST_F(ChoicesTest, TheFirstIsWhatOneAnswerWouldBe) {
  StartRouter();
  ASSERT_TRUE(Stream(AskFor(1)).status.ok());
  ASSERT_TRUE(Stream(AskFor(2)).status.ok());
  std::vector<FakeAttempt> attempts = workers_.attempts();
  ASSERT_EQ(attempts.size(), 3u);
  if (ChoiceOf(attempts[1]) != 0) std::swap(attempts[1], attempts[2]);
  for (FakeAttempt& attempt : attempts) attempt.prefill_request.clear_request_id();
  EXPECT_EQ(attempts[0].prefill_request.sampling().SerializeAsString(),
            attempts[1].prefill_request.sampling().SerializeAsString());
  for (int i : {1, 2}) {
    EXPECT_THAT(attempts[i].prefill_request.prompt_ids(),
                testing::ElementsAreArray(attempts[0].prefill_request.prompt_ids()));
    EXPECT_EQ(attempts[i].prefill_request.sampling().SerializeAsString(),
              attempts[i].generate_request.sampling().SerializeAsString());
  }
  EXPECT_NE(attempts[2].prefill_request.handoff_id(), attempts[1].prefill_request.handoff_id());
}

TEST_F(ChoicesTest, UnaryHoldsThemAll) {
  StartRouter();
  v1::ChatRequest request = AskFor(3);
  request.mutable_output()->set_logprobs(true);
  grpc::ClientContext context;
  v1::ChatResponse unary;
  ASSERT_TRUE(inference_->Chat(&context, request, &unary).ok());
  EXPECT_EQ(unary.text(), TextOf(0));
  ASSERT_EQ(unary.others_size(), 2);
  EXPECT_EQ(unary.logprobs_size(), static_cast<int>(Words(0).size()));
  for (int i : {1, 2}) {
    const v1::OtherChoice& other = unary.others(i - 1);
    EXPECT_EQ(other.index(), i);
    EXPECT_EQ(other.text(), TextOf(i));
    EXPECT_THAT(other.token_ids(), testing::ElementsAreArray(Words(i)));
    EXPECT_EQ(other.logprobs_size(), other.token_ids_size());
  }
  EXPECT_EQ(unary.done().choices_size(), 3);
}

TEST_F(ChoicesTest, ADeadDecodeCostsOnlyItsChoiceAnotherAttempt) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    if (ChoiceOf(attempt) != 2 || attempt.prefill_request.emitted() > 0) {
      return attempt.Serve(Words(ChoiceOf(attempt)));
    }
    attempt.ServeThreeAndDie(Words(2));
  });
  SeenReply reply = Stream(AskFor(3));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_THAT(TextsOf(reply), ElementsAre(testing::Pair(0, TextOf(0)), testing::Pair(1, TextOf(1)),
                                          testing::Pair(2, TextOf(2))));
  EXPECT_EQ(reply.done.attempts(), 2);
  EXPECT_EQ(workers_.attempts().size(), 4u);
}

TEST_F(ChoicesTest, OneThatFailsEndsAll) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    if (ChoiceOf(attempt) != 1) return attempt.FirstToken(Words(0)[0]);  // and goes on for ever
    Later([attempt] {
      absl::SleepFor(absl::Milliseconds(50));
      attempt.prefill->Finish(absl::FailedPreconditionError("not this one"));
    });
  });
  SeenReply reply = Stream(AskFor(3));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(reply.status.error_message(), "not this one");
  EXPECT_TRUE(WorkersAreFree(5));  // two prefills and three decodes
  ExpectCounted("FAILED_PRECONDITION");
}

TEST_F(ChoicesTest, AClientThatLeavesLeavesThemAll) {
  StartRouter();
  std::atomic<int> running{0};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.Progress(1, 8);
    ++running;
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, AskFor(3));
  ASSERT_TRUE(Eventually([&] { return running == 3; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WorkersAreFree(6));
  ExpectCounted("CANCELLED");
}

TEST_F(ChoicesTest, OutOfBoundsAndInASessionTheyAreRefusedByName) {
  StartRouter();
  for (int n : {0, 9, -1}) {
    SeenReply reply = Stream(AskFor(n));
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(reply.status.error_message(), HasSubstr("sampling.n"));
  }
  v1::Session session;
  grpc::ClientContext context;
  ASSERT_TRUE(sessions_->CreateSession(&context, {}, &session).ok());
  v1::ChatRequest turn = AskIn(session.id(), "hi");
  turn.mutable_sampling()->set_seed(kSeed);
  turn.mutable_sampling()->set_n(2);
  SeenReply reply = Stream(turn);
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("sampling.n"));
  turn.mutable_sampling()->set_n(1);
  EXPECT_TRUE(Stream(turn).status.ok());
}

class FewChoicesTest : public ChoicesTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.max_in_flight = 3;
    return config;
  }
};

TEST_F(FewChoicesTest, AllOfThemCountAgainstTheBoundOrNoneIsRun) {
  StartRouter();
  std::atomic<int> running{0};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (++running > 2) attempt.Serve(Words(0));
  });
  grpc::ClientContext first;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&first, AskFor(2));
  ASSERT_TRUE(Eventually([&] { return running == 2; }));
  SeenReply second = Stream(AskFor(2));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(second.status)), "QUEUE_FULL");
  EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(second.status)).has_value());
  EXPECT_EQ(running, 2);
  EXPECT_TRUE(Stream(AskFor(1)).status.ok());
  SeenReply never = Stream(AskFor(4));
  EXPECT_EQ(never.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(never.status.error_message(), HasSubstr("--max-in-flight"));
  first.TryCancel();
  reader->Finish();
  EXPECT_TRUE(WorkersAreFree(4));
  EXPECT_TRUE(Stream(AskFor(3)).status.ok());  // every slot came back
}

class SlowChoicesTest : public ChoicesTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.run.max_backlog_bytes = 4096;
    config.run.slow_client_timeout = absl::Seconds(1);
    return config;
  }
  ServedModel Model() override {
    ServedModel model = SmallModel();
    model.shape.context = 32768;
    return model;
  }
};

// Each alone stays below the bound for long: it is the reply that is bounded.
TEST_F(SlowChoicesTest, ASlowReaderIsBoundedForTheWholeReply) {
  StartRouter();
  constexpr int kTokens = 10000;
  workers_.SetScript([this](const FakeAttempt& attempt) {
    int32_t word = Reply(" word", false)[0];
    attempt.FirstToken(word);
    attempt.Receiving();
    attempt.HandedOff();
    for (int i = 1; i < kTokens; ++i) attempt.Tokens(i, {word});
    attempt.Generated("length");
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, AskFor(3));
  ASSERT_TRUE(Eventually([&] { return metrics_.slow_clients.Value() > 0; }));
  ExpectCounted("RESOURCE_EXHAUSTED");
  v1::ChatEvent event;
  std::map<int, int> tokens;
  while (reader->Read(&event)) tokens[event.delta().index()] += event.delta().token_ids_size();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(metrics_.slow_clients.Value(), 1);
  for (const auto& [choice, seen] : tokens) EXPECT_LT(seen, kTokens) << choice;
}

}  // namespace
}  // namespace sluice
