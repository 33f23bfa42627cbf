// Log-probabilities of a reply: each with its token, once, whatever happens to text and workers.
#include <gmock/gmock.h>

#include "absl/time/clock.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

class LogprobsTest : public RouterTest {
 protected:
  static v1::ChatRequest AskWith(int top) {
    v1::ChatRequest request = Ask("count");
    request.mutable_output()->set_logprobs(true);
    request.mutable_output()->set_top_logprobs(top);
    return request;
  }
  // Those of a stream, delta by delta.
  static std::vector<v1::TokenLogprobs> Told(const SeenReply& reply) {
    std::vector<v1::TokenLogprobs> all;
    for (const v1::ChatEvent& event : reply.events) {
      EXPECT_EQ(event.delta().logprobs_size(), event.delta().token_ids_size());
      all.insert(all.end(), event.delta().logprobs().begin(), event.delta().logprobs().end());
    }
    return all;
  }
  // As the fake workers tell them.
  void ExpectTold(const std::vector<v1::TokenLogprobs>& told, const std::vector<int32_t>& ids, int top) {
    ASSERT_EQ(told.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const internal::v1::TokenLogprobs expected = FakeLogprobs(static_cast<int>(i), ids[i], top);
      ExpectSays(told[i].chosen(), ids[i], expected.chosen());
      ASSERT_EQ(told[i].top_size(), top);
      for (int j = 0; j < top; ++j) ExpectSays(told[i].top(j), expected.top_ids(j), expected.top(j));
    }
  }
  void ExpectSays(const v1::TokenLogprob& said, int32_t id, float logprob) {
    EXPECT_EQ(said.token_id(), id);
    EXPECT_EQ(said.logprob(), logprob);
    EXPECT_EQ(said.text(), std::string(model_.tokenizer->TokenBytes(id)));
  }
};

TEST_F(LogprobsTest, AreToldOfEveryTokenInAStreamAndInAUnaryReply) {
  StartRouter();
  workers_.SetScript([this](const FakeAttempt& attempt) { attempt.Serve(Reply("one two three")); });
  const SeenReply stream = Stream(AskWith(3));
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  ExpectTold(Told(stream), Reply("one two three"), 3);

  grpc::ClientContext context;
  v1::ChatResponse unary;
  ASSERT_TRUE(inference_->Chat(&context, AskWith(3), &unary).ok());
  ExpectTold({unary.logprobs().begin(), unary.logprobs().end()}, stream.ids, 3);

  const SeenReply chosen_only = Stream(AskWith(0));
  ExpectTold(Told(chosen_only), stream.ids, 0);
}

TEST_F(LogprobsTest, AreNotToldUnasked) {
  StartRouter();
  const SeenReply reply = Stream(Ask("hi"));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  for (const v1::ChatEvent& event : reply.events) EXPECT_EQ(event.delta().logprobs_size(), 0);
  EXPECT_FALSE(workers_.attempts()[0].prefill_request.sampling().logprobs());
}

TEST_F(LogprobsTest, WaitWithTheirTokenForAStopStringThatMayCome) {
  StartRouter();
  const std::vector<int32_t> words = Reply("alpha beta gamma delta", false);
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.FirstToken(words[0]);
    attempt.Receiving();
    attempt.HandedOff();
    for (size_t i = 1; i < words.size(); ++i) attempt.Tokens(static_cast<int>(i), {words[i]});
  });
  v1::ChatRequest request = AskWith(2);
  request.mutable_stopping()->add_stop("a gam");
  const SeenReply reply = Stream(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text, "alpha bet");
  ASSERT_LT(reply.ids.size(), words.size());
  ExpectTold(Told(reply), reply.ids, 2);
}

TEST_F(LogprobsTest, OfDecodeWaitForPrefills) {
  StartRouter();
  const std::vector<int32_t> words = Reply("one two three");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.Tokens(1, {words.begin() + 1, words.end()});
    attempt.Generated("stop", words.back());
    Later([&, attempt] {
      absl::SleepFor(absl::Milliseconds(50));
      attempt.FirstToken(words[0]);
      attempt.HandedOff();
    });
  });
  ExpectTold(Told(Stream(AskWith(2))), words, 2);
}

TEST_F(LogprobsTest, AReplayOnAnotherPairRepeatsNone) {
  StartRouter();
  const std::vector<int32_t> words = Reply("one two three four five");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.ServeThreeAndDie(words);
  });
  const SeenReply reply = Stream(AskWith(2));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.done.attempts(), 2);
  EXPECT_EQ(workers_.attempts()[1].prefill_request.emitted(), 3);
  ExpectTold(Told(reply), words, 2);
}

TEST_F(LogprobsTest, AKeptSetThatIsSentAgainRepeatsNone) {
  StartRouter();
  const std::vector<int32_t> words = Reply("kept and sent again");
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (attempt.number > 1) return attempt.Serve(words);
    attempt.FirstToken(words[0]);
    attempt.HandoffFailed("peer_lost", true);
  });
  const SeenReply reply = Stream(AskWith(2));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  ASSERT_EQ(workers_.attempts().size(), 2u);
  EXPECT_TRUE(workers_.attempts()[1].prefill_request.reuse_kept());
  ExpectTold(Told(reply), words, 2);
}

TEST_F(LogprobsTest, AWorkerThatKeepsThemToItselfIsReplaced) {
  StartRouter();
  const std::vector<int32_t> words = Reply("one two three four");
  workers_.SetScript([&](FakeAttempt attempt) {
    if (attempt.number == 1) {  // prefill tells none
      attempt.tells_logprobs = false;
      attempt.FirstToken(words[0]);
    } else if (attempt.number == 2) {  // decode tells none
      attempt.FirstToken(words[0]);
      attempt.Receiving();
      attempt.HandedOff();
      attempt.Tokens(1, {words[1]});
      attempt.tells_logprobs = false;
      attempt.Tokens(2, {words[2]});
    } else {
      attempt.Serve(words);
    }
  });
  const SeenReply reply = Stream(AskWith(2));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.done.attempts(), 3);
  ExpectTold(Told(reply), words, 2);
}

}  // namespace
}  // namespace sluice
