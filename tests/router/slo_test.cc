// Requests that name how soon they want their tokens.
#include <gmock/gmock.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class SloTest : public RouterTest {
 protected:
  // So slow that no busy machine is slower. The prompt alone is far below it, what is ahead above.
  void WorkersHaveAhead(int64_t tokens, double tokens_per_second) {
    for (const char* name : {"p1", "p2"}) {
      internal::v1::WorkerLoad load;
      load.set_queued_tokens(tokens);
      load.set_prefill_tokens_per_second(tokens_per_second);
      workers_.SetLoad(name, load);
    }
  }
  // Text of about so many tokens.
  std::string Document(size_t tokens) {
    std::string text;
    for (int i = 0; model_.tokenizer->Encode(text)->size() < tokens; ++i)
      absl::StrAppend(&text, " word", i % 10);
    return text;
  }
  static v1::ChatRequest AskWithin(int ttft_ms, const std::string& text = "hi") {
    v1::ChatRequest request = Ask(text);
    request.mutable_slo()->set_ttft_ms(ttft_ms);
    return request;
  }
  double Refused(const char* reason) { return metrics_.admission_refused.At(reason).Value(); }
  static void ExpectUnreachable(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(FromGrpcStatus(status)), "SLO_UNREACHABLE");
    EXPECT_TRUE(RetryAfterOf(FromGrpcStatus(status)).has_value());
  }
};

TEST_F(SloTest, AQueueThatIsTooLongRefusesBeforeAnythingIsComputed) {
  WorkersHaveAhead(100000, 1000);
  StartRouter();
  SeenReply reply = Stream(AskWithin(50000));
  ExpectUnreachable(reply.status);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("slo.ttft_ms"));
  EXPECT_TRUE(reply.events.empty());
  EXPECT_TRUE(workers_.attempts().empty());
  EXPECT_EQ(Refused("slo_ttft"), 1);
  ExpectCounted("RESOURCE_EXHAUSTED");
  EXPECT_TRUE(Stream(AskWithin(200000)).status.ok());
  EXPECT_TRUE(Stream(Ask("hi")).status.ok());
  EXPECT_EQ(Refused("slo_ttft"), 1);
}

TEST_F(SloTest, WorkersThatMeasuredNothingRefuseNothing) {
  WorkersHaveAhead(100000, 0);
  StartRouter();
  EXPECT_TRUE(Stream(AskWithin(1)).status.ok());
}

TEST_F(SloTest, ALowerBudgetKeepsTheTimeAndIsTold) {
  WorkersHaveAhead(0, 10);
  StartRouter();
  v1::ChatRequest request = AskWithin(3600000, Document(350));
  v1::CompressionSpec* spec = request.mutable_compression();
  spec->set_preset("fastkv");
  spec->mutable_propagation()->set_layer(0);
  spec->set_budget_tokens(256);
  spec->set_min_prompt_tokens(0);
  request.mutable_slo()->set_on_pressure(v1::Slo::LOWER_BUDGET);
  SeenReply easy = Stream(request);
  ASSERT_TRUE(easy.status.ok()) << easy.status.error_message();
  const int prompt = easy.done.usage().prompt_tokens();
  ASSERT_GT(prompt, 300);
  EXPECT_EQ(easy.done.compression().budget_asked(), 0);
  EXPECT_EQ(easy.done.compression().budget_tokens(), 256);
  EXPECT_NEAR(easy.done.compression().tsp_rows(), prompt / 5, 1);
  EXPECT_EQ(metrics_.slo_budget_lowered.Value(), 0);

  // As asked the prompt takes `prompt` / 10 seconds; half the budget leaves 0.71 of that to compute.
  request.mutable_slo()->set_ttft_ms(prompt * 100 * 85 / 100);
  SeenReply lowered = Stream(request);
  ASSERT_TRUE(lowered.status.ok()) << lowered.status.error_message();
  for (const v1::CompressionReport& report :
       {lowered.events[0].started().compression(), lowered.done.compression()}) {
    EXPECT_EQ(report.budget_asked(), 256);
    EXPECT_EQ(report.budget_tokens(), 128);
    EXPECT_EQ(report.method(), "fastkv");
    EXPECT_NEAR(report.tsp_rows(), prompt / 10, 1);
  }
  EXPECT_EQ(workers_.attempts().back().prefill_request.gates().budget_tokens(), 128);
  EXPECT_EQ(metrics_.slo_budget_lowered.Value(), 1);

  request.mutable_slo()->set_ttft_ms(prompt * 100 / 3);  // no budget is low enough
  ExpectUnreachable(Stream(request).status);
  request.mutable_slo()->set_on_pressure(v1::Slo::REFUSE);
  request.mutable_slo()->set_ttft_ms(prompt * 100 * 85 / 100);
  ExpectUnreachable(Stream(request).status);
  EXPECT_EQ(metrics_.slo_budget_lowered.Value(), 1);
}

TEST_F(SloTest, DecodeThatIsTooSlowNowRefuses) {
  StartRouter(nullptr, {"p1", "d1"});
  ASSERT_TRUE(Stream(Ask("hi")).status.ok());  // half a second of decode for a few tokens
  v1::ChatRequest request = Ask("hi");
  request.mutable_slo()->set_tpot_ms(10);
  // With nobody there it may be faster now; the call of the request before may still be ending.
  EXPECT_TRUE(Eventually([&] { return Stream(request).status.ok(); }));
  const double refused = Refused("slo_tpot");
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    if (running.exchange(true)) attempt.Serve(Reply("hello there"));
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("stay"));
  ASSERT_TRUE(Eventually([&] { return running.load(); }));
  ExpectUnreachable(Stream(request).status);
  EXPECT_EQ(Refused("slo_tpot"), refused + 1);
  request.mutable_slo()->set_tpot_ms(60000);
  EXPECT_TRUE(Stream(request).status.ok());
  context.TryCancel();
  reader->Finish();
}

TEST_F(SloTest, BoundsAreNamed) {
  StartRouter();
  SeenReply reply = Stream(AskWithin(0));
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("slo.ttft_ms"));
  v1::ChatRequest request = Ask("hi");
  request.mutable_slo()->set_tpot_ms(3600001);
  EXPECT_THAT(Stream(request).status.error_message(), HasSubstr("slo.tpot_ms"));
  request.mutable_slo()->set_tpot_ms(3600000);
  request.mutable_slo()->set_on_pressure(static_cast<v1::Slo::OnPressure>(9));
  EXPECT_THAT(Stream(request).status.error_message(), HasSubstr("slo.on_pressure"));
}

}  // namespace
}  // namespace sluice
