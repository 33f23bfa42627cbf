// sluice bench against an endpoint of OpenAI's protocol: what it sends, what it tells, what it makes of
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/event_stream_lines.h"
#include "tests/client/client_run.h"
#include "tests/client/fake_openai.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(EventStreamLines, AreTheSameInWhateverPiecesTheyCome) {
  const std::string bytes =
      "data: one\n\n: nothing\n\nevent: x\nid: 3\ndata:two\ndata: three\n\r\ndata: four\r\n\r\ndata: "
      "five\r\rdata\n\n"
      "data: no end";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::vector<std::string> events;
    EventStreamLines lines([&](absl::string_view data) { events.emplace_back(data); });
    for (size_t at = 0; at < bytes.size(); at += piece)
      lines.Feed(absl::string_view(bytes).substr(at, piece));
    EXPECT_THAT(events, ::testing::ElementsAre("one", "two\nthree", "four", "five", "")) << piece;
  }
}

class OpenAiBench : public ::testing::Test {
 protected:
  ClientRun run;
  FakeOpenAi endpoint;
  TempDir dir;

  int Bench(std::vector<std::string> words) {
    words.insert(words.begin(), {"bench", "--openai", endpoint.url(), "--timeout", "30"});
    return run.Run(words);
  }
  std::string json_path() const { return dir.path() + "/out.json"; }
  json Json() const {
    std::ifstream file(json_path());
    return json::parse(file);
  }
};

int Words(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1; }

TEST_F(OpenAiBench, SendsTheProtocolAndCountsWhatComesBack) {
  ASSERT_EQ(Bench({"--requests", "4", "--warmup", "1", "--concurrency", "2", "--prompt-tokens", "110",
                   "--output-tokens", "9", "--api-key", "secret", "--json", json_path()}),
            0)
      << run.err();
  ASSERT_EQ(endpoint.lists().size(), 1u);
  EXPECT_EQ(endpoint.lists()[0].path, "/v1/models");
  const std::vector<HttpSeen> chats = endpoint.chats();
  ASSERT_EQ(chats.size(), 7u);  // two that count words, one to warm up
  for (size_t i = 2; i < chats.size(); ++i) {
    const json& body = chats[i].body;
    EXPECT_EQ(chats[i].method, "POST");
    EXPECT_EQ(chats[i].path, "/v1/chat/completions");
    EXPECT_EQ(chats[i].headers.at("authorization"), "Bearer secret");
    EXPECT_EQ(chats[i].headers.at("content-type"), "application/json");
    EXPECT_EQ(body["model"], "first-model");
    EXPECT_EQ(body["max_tokens"], 9);
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_FALSE(body.contains("sluice"));
    ASSERT_EQ(body["messages"].size(), 1u);
    EXPECT_EQ(body["messages"][0]["role"], "user");
    EXPECT_EQ(Words(body["messages"][0]["content"]), 100);  // and ten tokens around them
  }
  EXPECT_THAT(run.out(), HasSubstr("first-model at " + endpoint.url() + "; closed loop, concurrency 2"));
  EXPECT_THAT(run.out(), ContainsRegex("Successful requests +4\n"));
  const json result = Json();
  EXPECT_EQ(result["endpoint"], endpoint.url());
  EXPECT_EQ(result["runs"][0]["total_output_tokens"], 20);
  EXPECT_EQ(result["runs"][0]["total_cached_tokens"], 16);
  ASSERT_EQ(result["runs"][0]["requests"].size(), 4u);
  for (const json& request : result["runs"][0]["requests"]) {
    EXPECT_EQ(request["input_tokens"], 110);
    EXPECT_EQ(request["itls_ms"].size(), 1u);  // two events with text
    EXPECT_GE(request["e2el_ms"], request["ttft_ms"]);
    EXPECT_GT(request["ttft_ms"], 0);
  }
  EXPECT_THAT(run.out(), ::testing::Not(HasSubstr("secret")));
}

TEST_F(OpenAiBench, EachTurnSendsAllThatWasSaid) {
  ASSERT_EQ(Bench({"--turns", "3", "--turn-tokens", "30", "--prompt-tokens", "60", "--requests", "3"}), 0)
      << run.err();
  const std::vector<HttpSeen> chats = endpoint.chats();
  ASSERT_EQ(chats.size(), 5u);
  const json& last = chats[4].body["messages"];
  ASSERT_EQ(last.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(last[i]["role"], i % 2 == 0 ? "user" : "assistant");
  EXPECT_EQ(last[1]["content"], "Hello world");
  EXPECT_EQ(last[0], chats[2].body["messages"][0]);
  EXPECT_EQ(last[2], chats[3].body["messages"][2]);
}

TEST_F(OpenAiBench, SluiceIsAskedForPresetsAndTellsWhatItDid) {
  const auto event = [](const json& chunk) { return absl::StrCat("data: ", chunk.dump(), "\n\n"); };
  endpoint.StreamWith(
      {event({{"choices", json::array({{{"delta", {{"content", "x"}}}}})}}),
       event({{"choices", json::array()},
              {"usage", {{"prompt_tokens", 50}, {"completion_tokens", 2}}},
              {"sluice",
               {{"attempts", 2},
                {"new_field", 1},
                {"timings", {{"queue_seconds", 0.5}}},
                {"compression",
                 {{"method", "rocketkv"}, {"wire_bytes", "2100000"}, {"kept_tokens_mean", 7.5}}}}}}),
       "data: [DONE]\n\n"});
  const std::string file = dir.Write("p.jsonl", "{\"prompt\": \"one\", \"output_tokens\": 7}\n");
  ASSERT_EQ(Bench({"--prompts", file, "--requests", "1", "--preset", "rocketkv", "--budget", "64", "--model",
                   "second-model", "--no-ignore-eos", "--json", json_path()}),
            0)
      << run.err();
  const json body = endpoint.chats().at(0).body;
  EXPECT_EQ(body["model"], "second-model");
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_FALSE(body.contains("ignore_eos"));
  EXPECT_EQ(body["sluice"]["compression"], (json{{"preset", "rocketkv"}, {"budget_tokens", 64}}));
  const json request = Json()["runs"][0]["requests"][0];
  EXPECT_EQ(request["method"], "rocketkv");
  EXPECT_EQ(request["wire_bytes"], 2100000);
  EXPECT_EQ(request["server_queue_s"], 0.5);
  EXPECT_EQ(request["attempts"], 2);
}

TEST_F(OpenAiBench, ErrorsHaveTheirCodes) {
  const std::string file = dir.Write("p.jsonl", "{\"prompt\": \"one\"}\n");
  const auto bench = [&] { return Bench({"--prompts", file, "--requests", "2"}); };
  for (const auto& [code, name] : std::vector<std::pair<int, std::string>>{{400, "INVALID_ARGUMENT"},
                                                                           {401, "UNAUTHENTICATED"},
                                                                           {404, "NOT_FOUND"},
                                                                           {429, "RESOURCE_EXHAUSTED"},
                                                                           {500, "INTERNAL"},
                                                                           {503, "UNAVAILABLE"}}) {
    endpoint.AnswerWith(code, "{\"error\": {\"message\": \"the reason\", \"code\": null}}");
    EXPECT_EQ(bench(), 1);
    EXPECT_THAT(run.out(), HasSubstr(absl::StrCat("default: 2 failed with ", name, ", first: HTTP ", code,
                                                  ": the reason\n")));
  }
  endpoint.AnswerWith(502, "<html>bad gateway</html>\n");
  EXPECT_EQ(bench(), 1);
  EXPECT_THAT(run.out(), HasSubstr("UNAVAILABLE, first: HTTP 502: <html>bad gateway</html>\n"));

  const std::string token = "data: {\"choices\": [{\"delta\": {\"content\": \"x\"}}]}\n\n";
  const std::string usage =
      "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 1}}\n\n";
  for (const auto& [events, end, want] : std::vector<std::tuple<std::vector<std::string>, bool, std::string>>{
           {{token, "data: {\"error\": {\"message\": \"lost\", \"code\": 503}}\n\n"},
            true,
            "UNAVAILABLE, first: lost"},
           {{token, "data: {\"error\": {\"message\": \"lost\", \"code\": \"worker_lost\"}}\n\n"},
            true,
            "INTERNAL, first: lost"},
           {{token, "data: nonsense\n\n"}, true, "INTERNAL, first: the endpoint sent an event that is not"},
           {{token, usage}, true, "UNAVAILABLE, first: the endpoint ended the stream without data: [DONE]"},
           {{token, usage}, false, "UNAVAILABLE, first: the answer breaks off"},
           {{token, "data: [DONE]\n\n"},
            true,
            "FAILED_PRECONDITION, first: the endpoint counts no tokens"}}) {
    endpoint.StreamWith(events, end);
    EXPECT_EQ(bench(), 1) << want;
    EXPECT_THAT(run.out(), HasSubstr(want));
  }
  endpoint.StreamWith({token, usage, "data: [DONE]\n\n"});
  EXPECT_EQ(bench(), 0) << run.err();
}

TEST_F(OpenAiBench, TheDeadlineEndsARequest) {
  endpoint.Hang();
  const std::string file = dir.Write("p.jsonl", "{\"prompt\": \"one\"}\n");
  EXPECT_EQ(run.Run({"bench", "--openai", endpoint.url(), "--timeout", "0.3", "--prompts", file, "--requests",
                     "1"}),
            1);
  EXPECT_THAT(run.out(), HasSubstr("1 failed with DEADLINE_EXCEEDED"));
}

TEST_F(OpenAiBench, CtrlCHangsUp) {
  endpoint.Hang();
  std::thread stopper([&] {
    for (int i = 0; i < 2000 && endpoint.chats().size() < 2; ++i) absl::SleepFor(absl::Milliseconds(5));
    kill(getpid(), SIGINT);
  });
  const std::string file = dir.Write("p.jsonl", "{\"prompt\": \"one\"}\n");
  EXPECT_EQ(Bench({"--prompts", file, "--concurrency", "2", "--requests", "1000"}), 130);
  stopper.join();
  for (int i = 0; i < 500 && endpoint.hung_up() < 2; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(endpoint.hung_up(), 2);
  EXPECT_THAT(run.out(), ContainsRegex("Interrupted requests +2\n"));
}

TEST_F(OpenAiBench, WhatCannotBeReachedIsNamed) {
  const std::string nobody = absl::StrCat("http://127.0.0.1:", FreePort(), "/v1");
  EXPECT_EQ(run.Run({"bench", "--openai", nobody, "--requests", "1"}), 1);
  EXPECT_THAT(run.err(), HasSubstr(nobody));
  EXPECT_THAT(run.err(), HasSubstr("cannot connect"));
  EXPECT_THAT(run.err(), ::testing::Not(HasSubstr("router")));
  for (const auto& [url, why] :
       std::vector<std::pair<std::string, std::string>>{{"https://h/v1", "this client speaks no TLS"},
                                                        {"h:1/v1", "no http://"},
                                                        {"http:///v1", "no host"},
                                                        {"http://h:0/v1", "no port"},
                                                        {"http://h:1/v1?x", "a character"}}) {
    EXPECT_EQ(run.Run({"bench", "--openai", url}), 1) << url;
    EXPECT_THAT(run.err(), HasSubstr("--openai " + url + ": " + why));
  }
  EXPECT_EQ(run.Run({"bench", "--model", "m"}), 2);
  EXPECT_EQ(Bench({"--prompt-tokens", "6000"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("the model reads 5000"));
}

}  // namespace
}  // namespace sluice
