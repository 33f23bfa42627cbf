// What a client sees when all goes well, and when the client itself does not.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "tests/router/router_fixture.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<v1::ChatEvent::EventCase> Cases(const SeenReply& reply) {
  std::vector<v1::ChatEvent::EventCase> cases;
  for (const v1::ChatEvent& event : reply.events) {
    if (!event.has_progress()) cases.push_back(event.event_case());
  }
  return cases;
}

TEST_F(RouterTest, AStreamIsStartedThenTextThenDone) {
  StartRouter();
  SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "hello there");
  EXPECT_EQ(reply.ids, Reply("hello there"));
  EXPECT_EQ(Cases(reply).front(), v1::ChatEvent::kStarted);
  EXPECT_EQ(Cases(reply).back(), v1::ChatEvent::kDone);
  EXPECT_EQ(reply.done.choices(0).finish_reason(), v1::STOP_EOS);
  EXPECT_EQ(reply.done.choices(0).matched_stop(), "4095");
  EXPECT_EQ(reply.done.usage().completion_tokens(), static_cast<int>(reply.ids.size()));
  EXPECT_EQ(reply.done.usage().prompt_tokens(), workers_.attempts()[0].prefill_request.prompt_ids_size());
  EXPECT_EQ(reply.done.usage().cached_tokens(), 3);
  EXPECT_EQ(reply.done.timings().prefill_seconds(), 0.25);
  EXPECT_EQ(reply.done.timings().decode_seconds(), 0.5);
  EXPECT_GT(reply.done.timings().first_token_seconds(), 0);
  EXPECT_EQ(reply.done.compression().wire_bytes(), 1100u);
  EXPECT_EQ(reply.done.compression().method(), "sluice");
  EXPECT_EQ(reply.done.attempts(), 1);
  ExpectCounted("OK");
}

TEST_F(RouterTest, StartedTellsTheCompressionAsResolved) {
  StartRouter();
  v1::ChatRequest request = Ask("hi");
  request.mutable_compression()->set_preset("snapkv");
  request.mutable_compression()->set_budget_tokens(64);
  request.mutable_compression()->set_min_prompt_tokens(0);
  SeenReply reply = Stream(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  v1::CompressionReport report = reply.events[0].started().compression();
  EXPECT_EQ(report.method(), "snapkv");
  EXPECT_EQ(report.retention(), v1::RETENTION_SNAPKV);
  EXPECT_EQ(report.retention_budget(), 64);
  EXPECT_EQ(report.prompt_tokens(), reply.done.usage().prompt_tokens());
  EXPECT_EQ(report.off_reason(), "");
  EXPECT_EQ(report.wire_bytes(), 0u);
  // Done adds only what was measured.
  report.MergeFrom(reply.done.compression());
  EXPECT_EQ(report.SerializeAsString(), reply.done.compression().SerializeAsString());

  request.mutable_compression()->set_min_prompt_tokens(400);
  EXPECT_THAT(Stream(request).events[0].started().compression().off_reason(), HasSubstr("below"));
}

TEST_F(RouterTest, AGateThatIsOffIsCountedByItsCause) {
  StartRouter();
  auto count = [&](const char* cause) { return metrics_.compression_fallbacks.At(cause).Value(); };
  SeenReply reply = Stream(Ask("hi"));
  EXPECT_THAT(reply.done.compression().off_reason(), HasSubstr("min_prompt_tokens"));
  EXPECT_EQ(count("short_prompt"), 1);
  v1::ChatRequest request = Ask("hi");  // this model has no layer for tsp
  request.mutable_compression()->set_preset("sluice");
  request.mutable_compression()->set_min_prompt_tokens(0);
  ASSERT_TRUE(Stream(request).status.ok());
  EXPECT_EQ(count("unknown_layer"), 1);
  EXPECT_EQ(count("short_prompt"), 1);
  EXPECT_EQ(count("other"), 0);
}

TEST_F(RouterTest, UnaryIsTheConcatenationOfTheStream) {
  StartRouter();
  SeenReply stream = Stream(Ask("hi"));
  grpc::ClientContext context;
  v1::ChatResponse unary;
  ASSERT_TRUE(inference_->Chat(&context, Ask("hi"), &unary).ok());
  EXPECT_EQ(unary.text(), stream.text);
  EXPECT_EQ(std::vector<int32_t>(unary.token_ids().begin(), unary.token_ids().end()), stream.ids);
  EXPECT_EQ(unary.done().choices(0).finish_reason(), stream.done.choices(0).finish_reason());
  EXPECT_EQ(unary.started().prompt_tokens(), stream.events[0].started().prompt_tokens());
}

TEST_F(RouterTest, DecodeTokensWaitForPrefillsFirst) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    std::vector<int32_t> reply = Reply("one two three");
    for (size_t i = 1; i < reply.size(); ++i) attempt.Tokens(static_cast<int>(i), {reply[i]});
    attempt.Generated("stop", reply.back());
    Later([attempt, first = reply[0]] {
      absl::SleepFor(absl::Milliseconds(100));
      attempt.FirstToken(first);
      attempt.HandedOff();
    });
  });
  SeenReply reply = Stream(Ask("count"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "one two three");
  EXPECT_EQ(reply.ids, Reply("one two three"));
}

TEST_F(RouterTest, DoneWaitsForWhatCompressionLostWhereTheRequestAsks) {
  StartRouter();
  std::atomic<bool> measured{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    std::vector<int32_t> reply = Reply("one two");
    attempt.FirstToken(reply[0]);
    attempt.Receiving();
    for (size_t i = 1; i < reply.size(); ++i) attempt.Tokens(static_cast<int>(i), {reply[i]});
    if (!attempt.prefill_request.measure()) attempt.HandedOff();
    attempt.Generated("stop", reply.back());
    if (!attempt.prefill_request.measure()) return;
    attempt.HandedOffAndMeasuring();
    Later([attempt, &measured] {
      absl::SleepFor(absl::Milliseconds(100));
      v1::CompressionLoss loss;
      loss.add_retained_mass(0.5f);
      loss.add_retained_mass(0.75f);
      loss.set_top1_tokens(8);
      loss.set_top1_agreed(6);
      measured = true;
      attempt.Measured(loss);
    });
  });
  v1::ChatRequest request = Ask("count");
  EXPECT_FALSE(Stream(request).done.compression().has_loss());
  request.mutable_output()->set_compression_loss(true);
  SeenReply reply = Stream(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_TRUE(measured);
  EXPECT_THAT(reply.done.compression().loss().retained_mass(), ElementsAre(0.5f, 0.75f));
  EXPECT_EQ(reply.done.compression().loss().top1_agreed(), 6);
}

TEST_F(RouterTest, AFirstTokenMayEndTheTurn) {
  StartRouter();
  workers_.SetScript([](const FakeAttempt& attempt) { attempt.FirstToken(4095, true, true); });
  SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "");
  EXPECT_THAT(reply.ids, ElementsAre(4095));
  EXPECT_EQ(reply.done.choices(0).finish_reason(), v1::STOP_EOS);
}

TEST_F(RouterTest, AStopStringCutsTheTextAndCancelsDecode) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    std::vector<int32_t> reply = Reply("alpha beta gamma delta", false);
    attempt.FirstToken(reply[0]);
    attempt.Receiving();
    attempt.HandedOff();
    for (size_t i = 1; i < reply.size(); ++i) attempt.Tokens(static_cast<int>(i), {reply[i]});
  });
  v1::ChatRequest request = Ask("letters");
  request.mutable_stopping()->add_stop("a gam");
  SeenReply reply = Stream(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "alpha bet");
  EXPECT_EQ(reply.done.choices(0).finish_reason(), v1::STOP_STRING);
  EXPECT_EQ(reply.done.choices(0).matched_stop(), "a gam");
  absl::Time until = absl::Now() + absl::Seconds(5);
  while (workers_.cancelled_decodes() == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(workers_.cancelled_decodes(), 1);
}

TEST_F(RouterTest, WorkersGetTheWholeRequest) {
  StartRouter();
  v1::ChatRequest request = Ask("hi");
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_seed(42);
  request.mutable_stopping()->set_max_tokens(20);
  request.mutable_stopping()->add_stop_token_ids(17);
  ASSERT_TRUE(Stream(request).status.ok());
  FakeAttempt attempt = workers_.attempts()[0];
  const internal::v1::SamplingParams& sampling = attempt.prefill_request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.seed(), 42u);
  EXPECT_EQ(sampling.max_tokens(), 20);
  EXPECT_THAT(sampling.stop_token_ids(), ElementsAre(4095, 17));
  EXPECT_EQ(sampling.SerializeAsString(), attempt.generate_request.sampling().SerializeAsString());
  EXPECT_EQ(attempt.prefill_request.gates().SerializeAsString(),
            attempt.generate_request.gates().SerializeAsString());
  EXPECT_EQ(attempt.prefill_request.handoff_id(), attempt.generate_request.handoff_id());
  EXPECT_THAT(attempt.prefill_request.decode_incarnation(), HasSubstr(attempt.decode_name));
  EXPECT_THAT(attempt.generate_request.prefill_incarnation(), HasSubstr(attempt.prefill_name));
  EXPECT_EQ(attempt.prefill_request.turn_tokens(), attempt.prefill_request.prompt_ids_size());
}

TEST_F(RouterTest, ProgressReachesTheClient) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    attempt.Progress(3, 8);
    attempt.Serve(Reply("ok"));
  });
  SeenReply reply = Stream(Ask("hi"));
  bool seen = false;
  for (const v1::ChatEvent& event : reply.events) {
    seen |= event.progress().stage() == v1::Progress::PREFILL && event.progress().processed() == 3 &&
            event.progress().total() == 8;
  }
  EXPECT_TRUE(seen);
}

TEST_F(RouterTest, CancelReachesBothWorkers) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.Progress(1, 8);
    running = true;
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("hi"));
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  absl::Time until = absl::Now() + absl::Seconds(5);
  while (workers_.cancelled_prefills() + workers_.cancelled_decodes() < 2 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(workers_.cancelled_prefills(), 1);
  EXPECT_EQ(workers_.cancelled_decodes(), 1);
  ExpectCounted("CANCELLED");
}

TEST_F(RouterTest, TheDeadlineEndsTheRequestAndReachesTheWorkers) {
  StartRouter();
  workers_.SetScript([](const FakeAttempt& attempt) { attempt.Progress(1, 8); });
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::ChatResponse response;
  EXPECT_EQ(inference_->Chat(&context, Ask("hi"), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  absl::Time until = absl::Now() + absl::Seconds(5);
  while ((router_->requests_in_flight() > 0 ||
          workers_.cancelled_prefills() + workers_.cancelled_decodes() < 2) &&
         absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  // Which of the two the router sees depends on how long the request was under way.
  EXPECT_EQ(metrics_.requests.At("Chat").At("DEADLINE_EXCEEDED").Value() +
                metrics_.requests.At("Chat").At("CANCELLED").Value(),
            1);
  EXPECT_EQ(workers_.cancelled_prefills() + workers_.cancelled_decodes(), 2);
}

TEST_F(RouterTest, CompletionContinuesThePrompt) {
  StartRouter();
  v1::CompleteRequest request;
  request.set_prompt("Once upon");
  grpc::ClientContext context;
  v1::ChatResponse response;
  ASSERT_TRUE(inference_->Complete(&context, request, &response).ok());
  EXPECT_EQ(response.text(), "hello there");
  std::vector<int32_t> prompt = *model_.tokenizer->Encode("Once upon");
  EXPECT_THAT(workers_.attempts()[0].prefill_request.prompt_ids(), testing::ElementsAreArray(prompt));
}

class SmallQueueTest : public RouterTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.max_in_flight = 1;
    return config;
  }
};

TEST_F(SmallQueueTest, OneMoreThanTheBoundIsRefusedWithRetryInfo) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) { running = true; });
  grpc::ClientContext first;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&first, Ask("hi"));
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  SeenReply second = Stream(Ask("me too"));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(second.status)).has_value());
  first.TryCancel();
  reader->Finish();
}

class SlowClientTest : public RouterTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.run.max_backlog_bytes = 4096;
    config.run.slow_client_timeout = absl::Seconds(2);
    return config;
  }
  ServedModel Model() override {
    ServedModel model = SmallModel();
    model.shape.context = 32768;
    return model;
  }
  // Far more than the transport's windows hold.
  void TalkALot() {
    workers_.SetScript([this](const FakeAttempt& attempt) {
      int32_t word = Reply(" word", false)[0];
      attempt.FirstToken(word);
      attempt.Receiving();
      attempt.HandedOff();
      for (int i = 1; i < kTokens; ++i) attempt.Tokens(i, {word});
      attempt.Generated("length");
    });
  }
  void WaitForASlowClient(absl::Time until) {
    while (metrics_.slow_clients.Value() == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(metrics_.slow_clients.Value(), 1);
  }
  static constexpr int kTokens = 20000;
};

TEST_F(SlowClientTest, AClientThatDoesNotReadIsCutOff) {
  StartRouter();
  TalkALot();
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("talk"));
  absl::Time until = absl::Now() + kPatience * absl::Seconds(30);
  WaitForASlowClient(until);
  ExpectCounted("RESOURCE_EXHAUSTED");
  v1::ChatEvent event;
  int tokens = 0;
  while (reader->Read(&event)) tokens += event.delta().token_ids_size();
  EXPECT_LT(tokens, kTokens);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(SlowClientTest, AClientThatOnlyPausesGetsEverything) {
  StartRouter();
  TalkALot();
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("talk"));
  absl::SleepFor(absl::Milliseconds(500));
  v1::ChatEvent event;
  int tokens = 0;
  while (reader->Read(&event)) tokens += event.delta().token_ids_size();
  grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens, kTokens);
}

class UnboundedReplyTest : public SlowClientTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = SlowClientTest::Config();
    config.run.max_backlog_bytes = 64 << 20;
    return config;
  }
};

TEST_F(UnboundedReplyTest, AClientThatNeverTakesTheEndIsCutOffToo) {
  StartRouter();
  TalkALot();
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("talk"));
  absl::Time until = absl::Now() + kPatience * absl::Seconds(30);
  WaitForASlowClient(until);
  while (router_->requests_in_flight() > 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(router_->requests_in_flight(), 0);
  context.TryCancel();
  reader->Finish();
}

TEST_F(RouterTest, StoppingRefusesNewRequestsAndLetsOldOnesEnd) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    Later([&running, attempt, reply = Reply("late")] {
      running = true;
      absl::SleepFor(absl::Milliseconds(300));
      attempt.Serve(reply);
    });
  });
  SeenReply reply;
  std::thread client([&] { reply = Stream(Ask("hi")); });
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  std::thread stop([&] { router_->Stop(absl::Seconds(10)); });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(Stream(Ask("too late")).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  client.join();
  stop.join();
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "late");
}

TEST_F(RouterTest, BadTextIsNamedByItsField) {
  StartRouter(nullptr, {});
  v1::ChatRequest request = Ask("xx");
  std::string bytes = request.SerializeAsString();
  bytes[bytes.find("xx")] = '\xff';
  grpc::Slice slice(bytes);
  grpc::ByteBuffer buffer(&slice, 1), answer;
  grpc::ClientContext context;
  grpc::GenericStub stub(channel_);
  std::promise<grpc::Status> answered;
  stub.UnaryCall(&context, "/sluice.v1.Inference/Chat", grpc::StubOptions(), &buffer, &answer,
                 [&answered](grpc::Status status) { answered.set_value(std::move(status)); });
  grpc::Status status = answered.get_future().get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("messages.messages.content: not valid UTF-8"));
}

}  // namespace
}  // namespace sluice
