// OpenAI's API over HTTP on a router with fake workers: what it says.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/router/http/http_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using Json = nlohmann::json;

TEST_F(HttpTest, UnaryIsTheConcatenationOfTheStream) {
  StartRouter();
  const HttpAnswer unary = Post(kChat, AskBody(R"(, "logprobs": true, "top_logprobs": 2)"));
  ASSERT_EQ(unary.code, 200) << unary.body;
  EXPECT_EQ(unary.headers.at("content-type"), "application/json");
  const Json whole = unary.json();
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "hello there");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["usage"]["completion_tokens"], Reply("hello there").size());
  EXPECT_EQ(whole["model"], "needle");
  EXPECT_EQ(absl::StrCat("chatcmpl-", unary.headers.at("x-request-id")), whole["id"].get<std::string>());

  const HttpAnswer stream = Post(kChat, AskBody(R"(, "logprobs": true, "top_logprobs": 2, "stream": true,
                             "stream_options": {"include_usage": true})"));
  ASSERT_EQ(stream.code, 200) << stream.body;
  EXPECT_THAT(stream.headers.at("content-type"), HasSubstr("text/event-stream"));
  const std::vector<Json> events = stream.events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  Json logprobs = Json::array();
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json& choice = events[i]["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice["logprobs"].is_null()) continue;
    for (const Json& token : choice["logprobs"]["content"]) logprobs.push_back(token);
  }
  EXPECT_EQ(text, "hello there");
  EXPECT_EQ(logprobs, whole["choices"][0]["logprobs"]["content"]);
  EXPECT_EQ(logprobs.size(), Reply("hello there").size());
  const Json& last = events[events.size() - 2];
  EXPECT_EQ(last["usage"], whole["usage"]);
  EXPECT_EQ(last["sluice"]["compression"], whole["sluice"]["compression"]);
  EXPECT_EQ(last["sluice"]["compression"]["kept_tokens_min"], 11);
  EXPECT_TRUE(Eventually([&] { return metrics_.requests.At(kChat).At("OK").Value() == 2; }));
}

TEST_F(HttpTest, WorkersGetWhatTheClientAsked) {
  StartRouter();
  ASSERT_EQ(Post(kChat, AskBody(R"(, "seed": 42, "top_k": 3, "max_tokens": 20, "stop_token_ids": [17],
                                   "sluice": {"compression": {"preset": "snapkv", "budget_tokens": 64,
                                                              "min_prompt_tokens": 0}})"))
                .code,
            200);
  const FakeAttempt attempt = workers_.attempts()[0];
  EXPECT_EQ(attempt.prefill_request.sampling().seed(), 42u);
  EXPECT_EQ(attempt.prefill_request.sampling().top_k(), 3);
  EXPECT_EQ(attempt.prefill_request.sampling().max_tokens(), 20);
  EXPECT_THAT(attempt.prefill_request.sampling().stop_token_ids(), testing::ElementsAre(4095, 17));
}

TEST_F(HttpTest, ACompletionContinuesThePrompt) {
  StartRouter();
  const HttpAnswer answer = Post("/v1/completions", R"({"prompt": "Once upon", "logprobs": 1})");
  ASSERT_EQ(answer.code, 200) << answer.body;
  const Json choice = answer.json()["choices"][0];
  EXPECT_EQ(choice["text"], "hello there");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), Reply("hello there").size());
  const std::vector<int32_t> prompt = *model_.tokenizer->Encode("Once upon");
  EXPECT_THAT(workers_.attempts()[0].prefill_request.prompt_ids(), ElementsAreArray(prompt));
  EXPECT_EQ(workers_.attempts()[0].prefill_request.sampling().max_tokens(), 16);
  const HttpAnswer again =
      Post("/v1/completions", absl::StrCat(R"({"prompt": )", Json(prompt).dump(), R"(, "stream": true})"));
  ASSERT_EQ(again.code, 200) << again.body;
  std::string text;
  for (const Json& event : again.events()) {
    if (event.is_object()) text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "hello there");
  EXPECT_THAT(workers_.attempts()[1].prefill_request.prompt_ids(), ElementsAreArray(prompt));
}

TEST_F(HttpTest, ASessionIsTheSameOverBothProtocols) {
  StartRouter();
  grpc::ClientContext create;
  v1::Session session;
  ASSERT_TRUE(sessions_->CreateSession(&create, {}, &session).ok());
  const std::string in_session = absl::StrCat(R"(, "sluice": {"session_id": ")", session.id(), "\"}");
  const HttpAnswer first = Post(kChat, AskBody(in_session));
  ASSERT_EQ(first.code, 200) << first.body;
  EXPECT_EQ(first.json()["sluice"]["session_id"], session.id());
  const SeenReply second = Stream(AskIn(session.id(), "and then?"));
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  // The second prompt stands on the first turn's.
  const FakeAttempt one = workers_.attempts()[0], two = workers_.attempts()[1];
  EXPECT_GT(two.prefill_request.prompt_ids_size(), one.prefill_request.prompt_ids_size());
  EXPECT_TRUE(std::equal(one.prefill_request.prompt_ids().begin(), one.prefill_request.prompt_ids().end(),
                         two.prefill_request.prompt_ids().begin()));
  // A parent that is no longer the head.
  const HttpAnswer stale = Post(
      kChat, AskBody(absl::StrCat(R"(, "sluice": {"session_id": ")", session.id(), R"(", "parent_turn_id": )",
                                  first.json()["sluice"]["turn_id"].dump(), "}")));
  EXPECT_EQ(stale.code, 409);
  EXPECT_EQ(stale.headers.at("x-should-retry"), "false");
  const HttpAnswer third = Post(kChat, AskBody(in_session));
  EXPECT_EQ(third.code, 200) << third.body;
  grpc::ClientContext get;
  v1::GetSessionRequest which;
  which.set_session_id(session.id());
  v1::GetSessionResponse stored;
  ASSERT_TRUE(sessions_->GetSession(&get, which, &stored).ok());
  EXPECT_EQ(stored.turns_size(), 3);
}

TEST_F(HttpTest, ErrorsHaveOpenAisShape) {
  StartRouter();
  struct Case {
    const char* path;
    std::string body;
    int code;
    const char* param;
    const char* error;
    const char* message;
  };
  const Case cases[] = {
      {kChat, AskBody(R"(, "temperature": 3)"), 400, "temperature", "invalid_argument", "[0, 2]"},
      {kChat, AskBody(R"(, "top_p": 0)"), 400, "top_p", "invalid_argument", "top_p: 0 is not in"},
      {kChat, AskBody(R"(, "tools": [{}])"), 400, "tools", "unimplemented", "tools: not served"},
      {kChat, AskBody(R"(, "response_format": {"type": "json_object"})"), 400, "response_format",
       "unimplemented", "response_format: not served"},
      {kChat, AskBody(R"(, "model": "gpt-9")"), 404, nullptr, "model_not_found", "gpt-9"},
      {kChat, AskBody(R"(, "sluice": {"session_id": "nope"})"), 404, nullptr, "not_found", "session"},
      {kChat, AskBody(R"(, "sluice": {"compression": {"preset": "squeeze"}})"), 400, "sluice.compression",
       "invalid_argument", "sluice-mt"},
      {kChat, R"({"messages": []})", 400, "messages", "invalid_argument", "messages"},
      {kChat, R"({"messages": [{"role": "robot", "content": "x"}]})", 400, "messages[0].role",
       "invalid_argument", "robot"},
      {kChat, "{", 400, nullptr, "invalid_argument", "not JSON"},
      {"/v1/completions", R"({"prompt": "x", "logprobs": 99})", 400, "logprobs", "invalid_argument",
       "logprobs: 99 is not in"},
      {"/v1/completions", R"({"prompt": [99999]})", 400, "prompt", "invalid_argument", "vocabulary"},
      {"/v1/completions", absl::StrCat(R"({"prompt": ")", std::string(5000, 'x'), "\"}"), 400, nullptr,
       "context_length_exceeded", "512"},
      {"/tokenize", R"({"prompt": 3})", 400, "prompt", "invalid_argument", "string"},
      {"/detokenize", R"({"tokens": [99999]})", 400, "tokens", "invalid_argument", "vocabulary"},
      {"/v1/nothing", "{}", 404, nullptr, "not_found", "nothing"},
      {"/health", "{}", 405, nullptr, "method_not_allowed", "GET"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.body.substr(0, 100));
    const HttpAnswer answer = Post(one.path, one.body);
    EXPECT_EQ(answer.code, one.code) << answer.body;
    const Json error = ErrorOf(answer);
    EXPECT_EQ(error["code"], one.error);
    if (one.param != nullptr) {
      EXPECT_EQ(error["param"], one.param);
    }
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(one.message));
    EXPECT_TRUE(error["type"].is_string());
  }
  EXPECT_TRUE(workers_.attempts().empty());
}

TEST_F(HttpTest, AStreamThatFailsBeforeItsTextHasItsCode) {
  StartRouter(nullptr, {});
  const HttpAnswer answer = Post(kChat, AskBody(R"(, "stream": true)"));
  EXPECT_EQ(answer.code, 503) << answer.body;
  EXPECT_EQ(answer.headers.at("x-should-retry"), "true");
}

TEST_F(HttpTest, AStreamThatFailsLaterSaysSoInAnEvent) {
  StartRouter(nullptr, {"p1", "d1"});
  workers_.SetScript(
      [this](const FakeAttempt& attempt) { attempt.ServeThreeAndDie(Reply("one two three four")); });
  const HttpAnswer answer = Post(kChat, AskBody(R"(, "stream": true)"));
  ASSERT_EQ(answer.code, 200) << answer.body;
  const std::vector<Json> events = answer.events();
  EXPECT_EQ(events.back()["error"]["code"], "worker_lost") << events.back();
  EXPECT_TRUE(Eventually([&] { return metrics_.requests.At(kChat).At("ABORTED").Value() == 1; }));
}

TEST_F(HttpTest, ModelsAndHealth) {
  StartRouter(nullptr, {});
  EXPECT_EQ(Get("/health").code, 503);
  for (const char* name : {"p1", "d1"}) AddWorker(name);
  EXPECT_TRUE(Eventually([&] { return Get("/health").code == 200; }));
  const Json list = Get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "needle");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Get("/v1/models/needle").json(), list["data"][0]);
  EXPECT_EQ(Get("/v1/models/need%6Ce?x=1").json(), list["data"][0]);
  const HttpAnswer unknown = Get("/v1/models/gpt-9");
  EXPECT_EQ(unknown.code, 404);
  EXPECT_EQ(ErrorOf(unknown)["code"], "model_not_found");
  const HttpAnswer method = Get(kChat);
  EXPECT_EQ(method.code, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
}

TEST_F(HttpTest, TokensOfATextAndOfAConversation) {
  StartRouter(nullptr, {});
  const Json text = Post("/tokenize", R"({"model": "needle", "prompt": "Once upon a time"})").json();
  EXPECT_EQ(text["tokens"], Json(*model_.tokenizer->Encode("Once upon a time", {.add_special = true})));
  EXPECT_EQ(text["count"], text["tokens"].size());
  EXPECT_EQ(text["max_model_len"], 512);
  const Json chat = Post("/tokenize", R"({"messages": [{"role": "user", "content": "hi"}]})").json();
  EXPECT_EQ(chat["tokens"],
            Json(*model_.tokenizer->EncodeSegments(*model_.render({TurnMessage{"user", "hi"}}, true))));
  const Json back = Post("/detokenize", absl::StrCat(R"({"tokens": )", text["tokens"].dump(), "}")).json();
  EXPECT_EQ(back["prompt"], "Once upon a time");
}

}  // namespace
}  // namespace sluice
