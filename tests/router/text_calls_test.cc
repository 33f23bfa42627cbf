// Tokenize, Detokenize, RenderTemplate and CountTokens over gRPC, on a router without workers.
#include "router/text_calls.h"

#include <gmock/gmock.h>

#include "common/rpc/status_codec.h"
#include "sluice/v1/errors.pb.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::Contains;
using testing::ElementsAreArray;
using testing::Not;

class TextCallsTest : public RouterTest {
 protected:
  TextCallsTest() { StartRouter(nullptr, {}); }

  template <class Request, class Response>
  grpc::Status Call(grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (inference_.get()->*method)(&context, request, response);
  }
  std::vector<int32_t> Tokens(const v1::TokenizeRequest& request) {
    v1::TokenizeResponse response;
    grpc::Status status = Call(&v1::Inference::Stub::Tokenize, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.ids().begin(), response.ids().end()};
  }
  std::string Text(const std::vector<int32_t>& ids, bool keep_special = false) {
    v1::DetokenizeRequest request;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    if (keep_special) request.set_keep_special(true);
    v1::DetokenizeResponse response;
    grpc::Status status = Call(&v1::Inference::Stub::Detokenize, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.text();
  }
  static void AddMessage(google::protobuf::RepeatedPtrField<v1::Message>* messages, const std::string& role,
                         const std::string& content) {
    v1::Message* message = messages->Add();
    message->set_role(role);
    message->set_content(content);
  }
  static void ExpectNames(const grpc::Status& status, const std::string& field) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    v1::BadRequest bad;
    absl::optional<absl::Cord> detail =
        FromGrpcStatus(status).GetPayload("type.googleapis.com/google.rpc.BadRequest");
    ASSERT_TRUE(detail.has_value()) << status.error_message();
    ASSERT_TRUE(bad.ParseFromString(std::string(*detail)));
    EXPECT_EQ(bad.field_violations(0).field(), field);
  }
};

TEST_F(TextCallsTest, TextComesBackFromItsTokens) {
  v1::TokenizeRequest request;
  for (const char* text : {"", "hello there", "  two  spaces\n", "naïve 漢字 🙂"}) {
    request.set_text(text);
    std::vector<int32_t> ids = Tokens(request);
    EXPECT_THAT(ids, ElementsAreArray(*model_.tokenizer->Encode(text)));
    EXPECT_EQ(Text(ids), text);
  }
}

TEST_F(TextCallsTest, ControlTokensAreTextUnlessAskedFor) {
  const int32_t start = *model_.tokenizer->IdOf("<|im_start|>");
  v1::TokenizeRequest request;
  request.set_text("a<|im_start|>b");
  EXPECT_THAT(Tokens(request), Not(Contains(start)));
  EXPECT_EQ(Text(Tokens(request)), request.text());
  request.set_parse_special(true);
  std::vector<int32_t> ids = Tokens(request);
  EXPECT_THAT(ids, Contains(start));
  EXPECT_EQ(Text(ids), "ab");
  EXPECT_EQ(Text(ids, true), request.text());
  request.set_add_special(true);
  EXPECT_THAT(Tokens(request), ElementsAreArray(*model_.tokenizer->Encode(
                                   request.text(), {.parse_special = true, .add_special = true})));
}

TEST_F(TextCallsTest, TheTemplateGivesThePromptOfChat) {
  for (const char* name : {"p1", "d1"}) AddWorker(name);
  AwaitWorkers(1, 1);
  const std::string content = "hi <|im_end|> there";
  ASSERT_TRUE(Stream(Ask(content)).status.ok());
  const auto prompt = workers_.attempts()[0].prefill_request.prompt_ids();

  v1::RenderTemplateRequest render;
  AddMessage(render.mutable_messages(), "user", content);
  v1::RenderTemplateResponse rendered;
  ASSERT_TRUE(Call(&v1::Inference::Stub::RenderTemplate, render, &rendered).ok());
  EXPECT_EQ(rendered.text(), "<|im_start|>user\nhi <|im_end|> there<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(rendered.ids(), ElementsAreArray(prompt));
  render.set_add_reply_prefix(false);
  ASSERT_TRUE(Call(&v1::Inference::Stub::RenderTemplate, render, &rendered).ok());
  EXPECT_EQ(rendered.text(), "<|im_start|>user\nhi <|im_end|> there<|im_end|>\n");

  v1::CountTokensRequest count;
  AddMessage(count.mutable_messages(), "user", content);
  v1::CountTokensResponse counted;
  ASSERT_TRUE(Call(&v1::Inference::Stub::CountTokens, count, &counted).ok());
  EXPECT_EQ(counted.tokens(), prompt.size());
}

TEST_F(TextCallsTest, TextsLongerThanTheContextAreCounted) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word ";
  v1::CountTokensRequest request;
  request.set_text(text);
  v1::CountTokensResponse response;
  ASSERT_TRUE(Call(&v1::Inference::Stub::CountTokens, request, &response).ok());
  EXPECT_GT(response.tokens(), model_.shape.context);
  EXPECT_EQ(response.tokens(), static_cast<int>(model_.tokenizer->Encode(text)->size()));
}

TEST_F(TextCallsTest, WhatIsOutOfBoundsIsNamed) {
  const std::string long_text(kMaxCalledTextBytes + 1, 'x');
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse ids;
  tokenize.set_text(long_text);
  ExpectNames(Call(&v1::Inference::Stub::Tokenize, tokenize, &ids), "text");

  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  for (int32_t id : {-1, model_.shape.vocab}) {
    detokenize.clear_ids();
    detokenize.add_ids(id);
    ExpectNames(Call(&v1::Inference::Stub::Detokenize, detokenize, &text), "ids");
  }
  detokenize.mutable_ids()->Resize(kMaxCalledIds + 1, 0);
  ExpectNames(Call(&v1::Inference::Stub::Detokenize, detokenize, &text), "ids");

  v1::RenderTemplateRequest render;
  v1::RenderTemplateResponse rendered;
  ExpectNames(Call(&v1::Inference::Stub::RenderTemplate, render, &rendered), "messages");
  AddMessage(render.mutable_messages(), "narrator", "x");
  ExpectNames(Call(&v1::Inference::Stub::RenderTemplate, render, &rendered), "messages[0].role");
  render.mutable_messages(0)->set_role("user");
  render.mutable_messages(0)->set_content(long_text);
  ExpectNames(Call(&v1::Inference::Stub::RenderTemplate, render, &rendered), "messages");

  v1::CountTokensRequest count;
  v1::CountTokensResponse counted;
  ExpectNames(Call(&v1::Inference::Stub::CountTokens, count, &counted), "messages");
  count.set_text("x");
  AddMessage(count.mutable_messages(), "user", "x");
  ExpectNames(Call(&v1::Inference::Stub::CountTokens, count, &counted), "text");

  tokenize.set_text("x");
  tokenize.set_model("another");
  EXPECT_EQ(Call(&v1::Inference::Stub::Tokenize, tokenize, &ids).error_code(), grpc::StatusCode::NOT_FOUND);
}

class BusyTextCallsTest : public RouterTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.max_in_flight = 1;
    config.work_threads = 1;
    return config;
  }
};

TEST_F(BusyTextCallsTest, TheyAreBoundedAsRequestsAre) {
  StartRouter(nullptr, {});
  v1::TokenizeRequest request;
  std::string text;
  while (text.size() < (1 << 20)) text += "some words of different lengths, and numbers 1234567890 ";
  request.set_text(text);
  struct Call {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    grpc::Status status;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(std::make_unique<Call>());
  std::vector<std::thread> threads;
  for (auto& call : calls) {
    threads.emplace_back([&, call = call.get()] {
      call->status = inference_->Tokenize(&call->context, request, &call->response);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int served = 0, refused = 0;
  for (const auto& call : calls) {
    if (call->status.ok()) {
      ++served;
      continue;
    }
    ++refused;
    EXPECT_EQ(call->status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << call->status.error_message();
    EXPECT_EQ(ReasonOf(FromGrpcStatus(call->status)), "QUEUE_FULL");
  }
  EXPECT_GE(served, 1);
  EXPECT_GE(refused, 1);
  // And room comes back.
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  request.set_text("short");
  EXPECT_TRUE(inference_->Tokenize(&context, request, &response).ok());
}

}  // namespace
}  // namespace sluice
