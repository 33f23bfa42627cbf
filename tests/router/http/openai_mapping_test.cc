// OpenAI's JSON to our messages, our events and errors to OpenAI's JSON; no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/rpc/status_codec.h"
#include "router/http/openai_error.h"
#include "router/http/openai_reply.h"
#include "router/http/openai_request.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status ChatStatus(const std::string& body) {
  v1::ChatRequest request;
  OpenAiShape shape;
  return ReadChatCompletion(body, &request, &shape);
}

std::string WithMessages(const std::string& members) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + members + "}";
}

TEST(OpenAiRequest, EveryFieldOfAChatArrives) {
  v1::ChatRequest request;
  OpenAiShape shape;
  const absl::Status status = ReadChatCompletion(R"({
    "model": "needle", "messages": [
      {"role": "developer", "content": "be short"},
      {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": null},
      {"role": "assistant", "content": "yes", "refusal": null, "tool_calls": []},
      {"role": "user", "content": "three"}],
    "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
    "presence_penalty": -1, "frequency_penalty": 2, "seed": 18446744073709551615, "n": 2,
    "logit_bias": {"17": -100, "18": 1.5}, "max_completion_tokens": 20.0, "min_tokens": 3,
    "stop": "END", "stop_token_ids": [5, 6], "ignore_eos": true, "logprobs": true, "top_logprobs": 4,
    "stream": true, "stream_options": {"include_usage": true}, "user": "u7", "metadata": {"a": "b"},
    "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": false,
    "sluice": {"compression": {"preset": "snapkv", "budgetTokens": 64, "min_prompt_tokens": 0},
               "session_id": "s1", "parent_turn_id": "t1", "compression_loss": true,
               "forced_token_ids": [1, 2]}})",
                                                 &request, &shape);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(request.model(), "needle");
  const v1::SessionTurn& turn = request.session_turn();
  EXPECT_EQ(turn.session_id(), "s1");
  EXPECT_EQ(turn.parent_turn_id(), "t1");
  ASSERT_EQ(turn.new_messages_size(), 4);
  EXPECT_EQ(turn.new_messages(0).role(), "system");
  EXPECT_EQ(turn.new_messages(1).content(), "one\ntwo");
  EXPECT_EQ(turn.new_messages(2).content(), "yes");
  const v1::Sampling& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_p(), 0.25f);
  EXPECT_EQ(sampling.top_k(), 7);
  EXPECT_EQ(sampling.min_p(), 0.125f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.presence_penalty(), -1);
  EXPECT_EQ(sampling.frequency_penalty(), 2);
  EXPECT_EQ(sampling.seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(sampling.n(), 2);
  EXPECT_EQ(sampling.logit_bias().at(17), -100);
  EXPECT_EQ(sampling.logit_bias().at(18), 1.5f);
  EXPECT_THAT(sampling.forced_token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(request.stopping().max_tokens(), 20);
  EXPECT_EQ(request.stopping().min_tokens(), 3);
  EXPECT_THAT(request.stopping().stop(), ElementsAre("END"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(5, 6));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_TRUE(request.output().logprobs());
  EXPECT_EQ(request.output().top_logprobs(), 4);
  EXPECT_TRUE(request.output().compression_loss());
  EXPECT_EQ(request.compression().preset(), "snapkv");
  EXPECT_EQ(request.compression().budget_tokens(), 64);
  EXPECT_TRUE(request.compression().has_min_prompt_tokens());
  EXPECT_EQ(request.metadata().at("user"), "u7");
  EXPECT_EQ(request.metadata().at("a"), "b");
  EXPECT_TRUE(shape.chat && shape.stream && shape.include_usage);
}

TEST(OpenAiRequest, WhatIsNullOrEmptyIsUnset) {
  v1::ChatRequest request;
  OpenAiShape shape;
  ASSERT_TRUE(ReadChatCompletion(WithMessages(R"("temperature": null, "stop": [], "tools": null, "n": null,
                                  "logit_bias": {}, "functions": null, "top_k": -1, "sluice": {})"),
                                 &request, &shape)
                  .ok());
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_top_k());
  EXPECT_FALSE(request.has_stopping());
  EXPECT_TRUE(request.has_messages());
  EXPECT_FALSE(shape.stream);
}

TEST(OpenAiRequest, WhatIsNotServedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tool_choice": "auto")", "tool_choice"},
      {R"("response_format": {"type": "json_object"})", "output.response_format"},
      {R"("prompt_logprobs": 2)", "output.prompt_logprobs"},
      {R"("guided_json": {"type": "object"})", "guided_json"},
      {R"("no_such_field": 0)", "no_such_field"},
      {R"("store": true)", "store"},
      {R"("stream": true, "stream_options": {"x": 1})", "stream_options.x"},
      {R"("sluice": {"no_such_field": 1})", "sluice.no_such_field"},
      {R"("max_tokens": 3, "priority": 1)", "priority"},
  };
  for (const auto& [members, field] : cases) {
    const absl::Status status = ChatStatus(WithMessages(members));
    EXPECT_TRUE(absl::IsUnimplemented(status)) << members << ": " << status;
    EXPECT_EQ(FieldOf(status), field);
  }
  EXPECT_THAT(ChatStatus(R"({"messages": [{"role": "user", "content": "x", "name": "n"}]})").message(),
              HasSubstr("messages[0].name: not served"));
  EXPECT_THAT(ChatStatus(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})").message(),
              HasSubstr("messages[0].content[0].type"));
}

TEST(OpenAiRequest, AWrongValueIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("n": 1.5)", "n"},
      {R"("max_tokens": 3000000000)", "max_tokens"},
      {R"("seed": -1)", "seed"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stop": [1])", "stop[0]"},
      {R"("stop_token_ids": 4)", "stop_token_ids"},
      {R"("stop_token_ids": [4, "x"])", "stop_token_ids[1]"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("max_tokens": 3, "max_completion_tokens": 4)", "max_tokens"},
      {R"("metadata": {"a": 1})", "metadata.a"},
      {R"("response_format": "text")", "response_format"},
      {R"("sluice": 3)", "sluice"},
      {R"("sluice": {"compression": {"preset": 5, "budgetTokenz": 1}})", "sluice.compression"},
      {R"("sluice": {"parent_turn_id": "t"})", "sluice.parent_turn_id"},
  };
  for (const auto& [members, field] : cases) {
    const absl::Status status = ChatStatus(WithMessages(members));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << members << ": " << status;
    EXPECT_EQ(FieldOf(status), field) << status;
  }
}

TEST(OpenAiRequest, WhatIsNotJsonIsRefusedBeforeItGrows) {
  EXPECT_THAT(ChatStatus("{").message(), HasSubstr("not JSON"));
  EXPECT_THAT(ChatStatus("").message(), HasSubstr("not JSON"));
  EXPECT_THAT(ChatStatus("[1]").message(), HasSubstr("not a JSON object"));
  EXPECT_THAT(ChatStatus("{\"model\": \"\xff\"}").message(), HasSubstr("not JSON"));
  EXPECT_THAT(ChatStatus(R"({"temperature": 1e999})").message(), HasSubstr("not JSON"));
  EXPECT_THAT(ChatStatus(std::string(100000, '[')).message(), HasSubstr("nested deeper"));
  EXPECT_THAT(ChatStatus("[" + std::string(5 << 20, ',')).message(), HasSubstr("values"));
  // Brackets in strings are text.
  EXPECT_TRUE(
      ChatStatus(R"({"messages": [{"role": "user", "content": ")" + std::string(200, '[') + R"(\""}]})")
          .ok());
}

TEST(OpenAiRequest, ACompletionTakesTextOrIds) {
  const auto read = [](const std::string& body, v1::CompleteRequest* request) {
    OpenAiShape shape;
    const absl::Status status = ReadCompletion(body, request, &shape);
    EXPECT_FALSE(shape.chat);
    return status;
  };
  v1::CompleteRequest text, list, ids, listed_ids;
  ASSERT_TRUE(read(R"({"prompt": "Once", "logprobs": 2})", &text).ok());
  EXPECT_EQ(text.prompt(), "Once");
  EXPECT_EQ(text.stopping().max_tokens(), 16);  // OpenAI's default
  EXPECT_TRUE(text.output().logprobs());
  EXPECT_EQ(text.output().top_logprobs(), 2);
  ASSERT_TRUE(read(R"({"prompt": ["Once"], "max_tokens": 5, "echo": false, "best_of": 1})", &list).ok());
  EXPECT_EQ(list.prompt(), "Once");
  EXPECT_EQ(list.stopping().max_tokens(), 5);
  ASSERT_TRUE(read(R"({"prompt": [1, 2, 3]})", &ids).ok());
  EXPECT_THAT(ids.prompt_token_ids().ids(), ElementsAre(1, 2, 3));
  ASSERT_TRUE(read(R"({"prompt": [[4]]})", &listed_ids).ok());
  EXPECT_THAT(listed_ids.prompt_token_ids().ids(), ElementsAre(4));
  v1::CompleteRequest refused;
  EXPECT_EQ(FieldOf(read(R"({"prompt": ["a", "b"]})", &refused)), "prompt");
  EXPECT_EQ(FieldOf(read(R"({})", &refused)), "prompt");
  EXPECT_EQ(FieldOf(read(R"({"prompt": "x", "suffix": "y"})", &refused)), "suffix");
  EXPECT_EQ(FieldOf(read(R"({"prompt": "x", "echo": true})", &refused)), "output.echo");
  EXPECT_EQ(FieldOf(read(R"({"prompt": "x", "sluice": {"session_id": "s"}})", &refused)),
            "sluice.session_id");
}

TEST(OpenAiError, NamesFieldsAsTheClientWroteThem) {
  const auto error = [](OpenAiEndpoint endpoint, const absl::Status& status) {
    return ErrorJson(endpoint, status).at("error");
  };
  Json bad = error(OpenAiEndpoint::kChat, BadField("sampling.temperature", "3 is not in [0, 2]"));
  EXPECT_EQ(bad["message"], "temperature: 3 is not in [0, 2]");
  EXPECT_EQ(bad["param"], "temperature");
  EXPECT_EQ(bad["type"], "invalid_request_error");
  EXPECT_EQ(bad["code"], "invalid_argument");
  EXPECT_EQ(error(OpenAiEndpoint::kChat, BadField("messages.messages[1].role", "x"))["param"],
            "messages[1].role");
  EXPECT_EQ(error(OpenAiEndpoint::kChat, BadField("session_turn.new_messages", "x"))["param"], "messages");
  EXPECT_EQ(error(OpenAiEndpoint::kChat, BadField("output.top_logprobs", "x"))["param"], "top_logprobs");
  EXPECT_EQ(error(OpenAiEndpoint::kCompletion, BadField("output.top_logprobs", "x"))["param"], "logprobs");
  EXPECT_EQ(error(OpenAiEndpoint::kChat, FieldNotServed("slo.ttft_ms"))["param"], "sluice.slo.ttft_ms");
  EXPECT_EQ(error(OpenAiEndpoint::kDetokenize, BadField("ids", "x"))["param"], "tokens");
  const Json none = error(OpenAiEndpoint::kChat, WithReason(absl::AbortedError("lost"), "WORKER_LOST"));
  EXPECT_TRUE(none["param"].is_null());
  EXPECT_EQ(none["code"], "worker_lost");
}

TEST(OpenAiError, CodesMeanActions) {
  const auto response = [](const absl::Status& status) {
    return ErrorResponse(OpenAiEndpoint::kChat, status);
  };
  EXPECT_EQ(response(BadField("n", "x")).code, 400);
  EXPECT_EQ(response(FieldNotServed("tools")).code, 400);
  EXPECT_EQ(response(absl::NotFoundError("x")).code, 404);
  EXPECT_EQ(response(absl::AbortedError("x")).code, 409);
  EXPECT_EQ(response(absl::UnauthenticatedError("x")).code, 401);
  EXPECT_EQ(response(absl::PermissionDeniedError("x")).code, 403);
  EXPECT_EQ(response(absl::UnavailableError("x")).code, 503);
  EXPECT_EQ(response(absl::DeadlineExceededError("x")).code, 504);
  EXPECT_EQ(response(absl::DataLossError("x")).code, 500);
  const HttpResponse full =
      response(WithRetryAfter(absl::ResourceExhaustedError("x"), absl::Milliseconds(1200)));
  EXPECT_EQ(full.code, 429);
  EXPECT_THAT(full.headers, testing::Contains(testing::Pair("Retry-After", "2")));
  EXPECT_THAT(full.headers, testing::Contains(testing::Pair("x-should-retry", "true")));
  // OpenAI's clients would try 409 again.
  EXPECT_THAT(response(absl::AbortedError("x")).headers,
              testing::Contains(testing::Pair("x-should-retry", "false")));
}

// The events of a reply of two pieces.
std::vector<v1::ChatEvent> Events(int choices = 1) {
  std::vector<v1::ChatEvent> events(1);
  events[0].mutable_started()->set_request_id("r1");
  events[0].mutable_started()->set_model("needle");
  for (int i = 0; i < choices; ++i) {
    for (const char* text : {"a\xC3\xA4", "b"}) {
      v1::Delta* delta = events.emplace_back().mutable_delta();
      delta->set_index(i);
      delta->set_text(text);
      v1::TokenLogprobs* token = delta->add_logprobs();
      token->mutable_chosen()->set_text(text);
      token->mutable_chosen()->set_logprob(-0.5);
      v1::TokenLogprob* top = token->add_top();
      top->set_text("\xC3");  // half a character
      top->set_logprob(-std::numeric_limits<float>::infinity());
    }
  }
  v1::Done* done = events.emplace_back().mutable_done();
  for (int i = 0; i < choices; ++i) {
    v1::Choice* choice = done->add_choices();
    choice->set_index(i);
    choice->set_finish_reason(i == 0 ? v1::STOP_STRING : v1::CONTEXT_FULL);
    choice->set_matched_stop(i == 0 ? "END" : "");
  }
  done->mutable_usage()->set_prompt_tokens(3);
  done->mutable_usage()->set_cached_tokens(2);
  done->mutable_usage()->set_completion_tokens(2);
  done->mutable_compression()->set_method("snapkv");
  done->mutable_compression()->set_kept_tokens_min(11);
  return events;
}

std::vector<Json> Chunks(const OpenAiShape& shape, const std::vector<v1::ChatEvent>& events) {
  OpenAiReply reply(shape, 99);
  std::vector<Json> out;
  for (const v1::ChatEvent& event : events) {
    std::string text = reply.Take(event);
    for (size_t end; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
      EXPECT_EQ(text.substr(0, 6), "data: ");
      out.push_back(Json::parse(text.substr(6, end - 6)));
    }
    EXPECT_EQ(text, "");
  }
  return out;
}

Json Whole(const OpenAiShape& shape, const std::vector<v1::ChatEvent>& events) {
  OpenAiReply reply(shape, 99);
  for (const v1::ChatEvent& event : events) EXPECT_EQ(reply.Take(event), "");
  return Json::parse(reply.Whole());
}

TEST(OpenAiReply, AChatIsRoleTextAndEnd) {
  const std::vector<Json> chunks = Chunks({.chat = true, .stream = true, .include_usage = true}, Events());
  ASSERT_EQ(chunks.size(), 5u);
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["id"], "chatcmpl-r1");
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["model"], "needle");
    EXPECT_EQ(chunk["created"], 99);
    EXPECT_EQ(chunk["usage"].is_null(), &chunk != &chunks.back());
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "a\xC3\xA4");
  EXPECT_TRUE(chunks[1]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(chunks[3]["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(chunks[3].count("sluice"), 0u);
  EXPECT_EQ(chunks[4]["choices"].size(), 0u);
  EXPECT_EQ(chunks[4]["usage"]["total_tokens"], 5);
  EXPECT_EQ(chunks[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(chunks[4]["sluice"]["compression"]["method"], "snapkv");
  EXPECT_EQ(chunks[4]["sluice"]["compression"]["kept_tokens_min"], 11);
  // Without usage the end itself is last.
  const std::vector<Json> bare = Chunks({.chat = true, .stream = true}, Events());
  ASSERT_EQ(bare.size(), 4u);
  EXPECT_EQ(bare[3]["sluice"]["request_id"], "r1");
  EXPECT_EQ(bare[3].count("usage"), 0u);
}

TEST(OpenAiReply, UnaryIsWhatTheStreamSays) {
  for (const bool chat : {true, false}) {
    const Json whole = Whole({.chat = chat}, Events(2));
    ASSERT_EQ(whole["choices"].size(), 2u);
    std::vector<std::string> texts(2);
    std::vector<Json> logprobs(2);
    std::vector<Json> ends(2);
    for (const Json& chunk : Chunks({.chat = chat, .stream = true}, Events(2))) {
      const Json& choice = chunk["choices"][0];
      const size_t i = choice["index"];
      texts[i] += chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
      if (!choice["finish_reason"].is_null()) ends[i] = choice["finish_reason"];
      if (choice["logprobs"].is_null()) continue;
      for (const auto& [name, list] : choice["logprobs"].items()) {
        for (const Json& item : list) logprobs[i][name].push_back(item);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      const Json& choice = whole["choices"][i];
      EXPECT_EQ(choice["index"], i);
      EXPECT_EQ(chat ? choice["message"]["content"] : choice["text"], texts[i]);
      EXPECT_EQ(texts[i],
                "a\xC3\xA4"
                "b");
      EXPECT_EQ(choice["finish_reason"], ends[i]);
      for (const auto& [name, list] : logprobs[i].items()) EXPECT_EQ(choice["logprobs"][name], list);
      EXPECT_EQ(logprobs[i][chat ? "content" : "tokens"].size(), 2u);
    }
    EXPECT_EQ(ends[1], "length");
  }
}

TEST(OpenAiReply, LogprobsAreJsonWhateverTheyAre) {
  const Json chat = Whole({.chat = true}, Events())["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(chat[0]["token"], "a\xC3\xA4");
  EXPECT_EQ(chat[0]["bytes"], Json({0x61, 0xC3, 0xA4}));
  EXPECT_EQ(chat[0]["logprob"], -0.5);
  EXPECT_EQ(chat[0]["top_logprobs"][0]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(chat[0]["top_logprobs"][0]["bytes"], Json::array({0xC3}));
  EXPECT_EQ(chat[0]["top_logprobs"][0]["logprob"], -9999);
  const Json text = Whole({.chat = false}, Events())["choices"][0]["logprobs"];
  EXPECT_EQ(text["tokens"], Json({"a\xC3\xA4", "b"}));
  EXPECT_EQ(text["token_logprobs"], Json({-0.5, -0.5}));
  EXPECT_EQ(text["text_offset"], Json({0, 2}));
  EXPECT_EQ(text["top_logprobs"][0]["a\xC3\xA4"], -0.5);
}

}  // namespace
}  // namespace sluice
