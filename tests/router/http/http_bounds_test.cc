// Connections that misbehave, over HTTP: each gets its refusal or its end, and others are served.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/router/http/http_fixture.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class HttpBoundsTest : public HttpTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = HttpTest::Config();
    config.max_message_bytes = 64 << 10;
    config.http.max_connections = 8;
    config.http.header_timeout = config.http.body_timeout = kPatience * absl::Milliseconds(300);
    config.http.idle_timeout = kPatience * absl::Milliseconds(600);
    config.run.slow_client_timeout = kPatience * absl::Seconds(1);
    config.run.max_backlog_bytes = 4096;
    return config;
  }
  ServedModel Model() override {
    ServedModel model = SmallModel();
    model.shape.context = 32768;
    return model;
  }
  void ExpectServes() { EXPECT_EQ(Post(kChat, AskBody()).code, 200); }
  // A first token, and silence.
  void Stall() {
    workers_.SetScript([this](const FakeAttempt& attempt) {
      attempt.FirstToken(Reply("one", false)[0]);
      attempt.HandedOff();
    });
  }
  void TalkALot(int tokens) {
    workers_.SetScript([this, tokens](const FakeAttempt& attempt) {
      const int32_t word = Reply(" word", false)[0];
      attempt.FirstToken(word);
      attempt.Receiving();
      attempt.HandedOff();
      for (int i = 1; i < tokens; ++i) attempt.Tokens(i, {word});
      attempt.Generated("length");
    });
  }
  static std::string StreamText() { return PostText(kChat, AskBody(R"(, "stream": true)")); }
};

TEST_F(HttpBoundsTest, AConnectionServesManyRequestsAlsoSentAtOnce) {
  StartRouter();
  HttpClient client(port());
  client.Send(PostText(kChat, AskBody()));
  EXPECT_EQ(client.Read()->code, 200);
  client.Send(absl::StrCat(GetText("/health"), StreamText(), GetText("/v1/models"), PostText(kChat, "{")));
  EXPECT_EQ(client.Read()->json()["status"], "ok");
  EXPECT_EQ(client.Read()->events().back(), "[DONE]");
  EXPECT_EQ(client.Read()->json()["object"], "list");
  EXPECT_EQ(client.Read()->code, 400);
  client.Send(GetText("/health", "Connection: close\r\n"));
  EXPECT_EQ(client.Read()->code, 200);
  EXPECT_TRUE(client.ServerCloses());
}

TEST_F(HttpBoundsTest, OldClientsAndHeadAreServed) {
  StartRouter();
  HttpClient old(port());
  const std::string body = AskBody(R"(, "stream": true)");
  old.Send(absl::StrCat("POST ", kChat, " HTTP/1.0\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  const std::optional<HttpAnswer> answer = old.Read();  // to the end of the connection
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(answer->events().back(), "[DONE]");
  HttpClient head(port());
  head.Send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + GetText("/v1/models"));
  EXPECT_EQ(head.Read(/*to_head=*/true)->code, 200);
  EXPECT_EQ(head.Read()->json()["object"], "list");  // no body came between
}

TEST_F(HttpBoundsTest, ChunkedBodiesAndContinueAreServed) {
  StartRouter();
  HttpClient client(port());
  client.Send(absl::StrCat("POST ", kChat,
                           " HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"));
  EXPECT_EQ(client.Read(/*to_head=*/true)->code, 100);
  const std::string body = AskBody();
  for (const std::string& piece : {body.substr(0, 10), body.substr(10)}) {
    client.Send(absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n"));
  }
  client.Send("0\r\n\r\n");
  EXPECT_EQ(client.Read()->code, 200);
}

TEST_F(HttpBoundsTest, ADisconnectCancelsBothWorkers) {
  StartRouter();
  Stall();
  for (const bool stream : {true, false}) {
    const int before = workers_.cancelled_decodes();
    HttpClient client(port());
    client.Send(PostText(kChat, AskBody(stream ? R"(, "stream": true)" : "")));
    if (stream) {
      EXPECT_TRUE(client.ReadUntil("one"));
    } else {
      EXPECT_TRUE(Eventually([&] { return workers_.attempts().size() == 2; }));
    }
    client.Close();
    EXPECT_TRUE(Eventually([&] { return workers_.cancelled_decodes() == before + 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return metrics_.requests.At(kChat).At("CANCELLED").Value() == 2; }));
  EXPECT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
}

TEST_F(HttpBoundsTest, WhatIsTooLargeIsRefused) {
  StartRouter();
  HttpClient declared(port());
  declared.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nContent-Length: 209715200\r\n\r\n"));
  std::optional<HttpAnswer> answer = declared.Read();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, 413);
  EXPECT_EQ(ErrorOf(*answer)["code"], "body_too_large");
  EXPECT_TRUE(declared.ServerCloses());

  // Sent to its end all the same: the answer arrives.
  EXPECT_EQ(Post(kChat, std::string(1 << 20, ' ')).code, 413);

  HttpClient grown(port());
  grown.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"));
  for (int i = 0; i < 5; ++i) grown.Send(absl::StrCat("4000\r\n", std::string(0x4000, ' '), "\r\n"));
  EXPECT_EQ(grown.Read()->code, 413);

  HttpClient head(port());
  head.Send(absl::StrCat("GET /health HTTP/1.1\r\nX: ", std::string(20000, 'x'), "\r\n\r\n"));
  EXPECT_EQ(head.Read()->code, 431);
  ExpectServes();
}

TEST_F(HttpBoundsTest, WhatIsNotHttpIsRefused) {
  StartRouter();
  for (const char* bytes : {"\x16\x03\x01\x02\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde"}) {
    HttpClient client(port());
    client.Send(bytes);
    const std::optional<HttpAnswer> answer = client.Read();
    ASSERT_TRUE(answer.has_value()) << bytes;
    EXPECT_EQ(answer->code, 400) << bytes;
    EXPECT_TRUE(client.ServerCloses()) << bytes;
  }
  ExpectServes();
}

TEST_F(HttpBoundsTest, ASlowRequestEnds) {
  StartRouter();
  HttpClient silent(port());
  HttpClient head(port());
  HttpClient body(port());
  body.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"));
  std::atomic<bool> done{false};
  std::thread drip([&] {  // one byte at a time
    for (char c : std::string("GET /health HTTP/1.1\r\nX: ") + std::string(10000, 'x')) {
      if (done || !head.Send(std::string(1, c))) return;
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  ExpectServes();
  std::optional<HttpAnswer> answer = head.Read();
  done = true;
  drip.join();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, 408);
  answer = body.Read();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(ErrorOf(*answer)["code"], "request_too_slow");
  EXPECT_TRUE(silent.ServerCloses());
  HttpClient idle(port());
  idle.Send(GetText("/health"));
  EXPECT_EQ(idle.Read()->code, 200);
  EXPECT_TRUE(idle.ServerCloses());
}

TEST_F(HttpBoundsTest, HalfOpenConnectionsAreBoundedAndGo) {
  StartRouter();
  std::vector<std::unique_ptr<HttpClient>> half;
  for (int i = 0; i < 8; ++i) {
    half.push_back(std::make_unique<HttpClient>(port()));
    half.back()->Send("POST / HTTP/1.1\r\n");
  }
  HttpClient more(port());
  std::optional<HttpAnswer> refused = more.Read();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, 503);
  EXPECT_EQ(ErrorOf(*refused)["code"], "connections_full");
  // They run out of time, and there is room again.
  for (const auto& client : half) EXPECT_EQ(client->Read()->code, 408);
  half.clear();
  EXPECT_TRUE(Eventually([&] { return RoundTrip(GetText("/health")).code == 200; }));
}

TEST_F(HttpBoundsTest, AStreamMayBeSilentForLong) {
  StartRouter();
  std::atomic<bool> go{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    Later([&go, attempt, reply = Reply("late")] {
      while (!go) absl::SleepFor(absl::Milliseconds(10));
      attempt.Serve(reply);
    });
  });
  HttpClient client(port());
  client.Send(StreamText());
  absl::SleepFor(kPatience * absl::Milliseconds(1200));  // longer than any timeout but a reader's
  go = true;
  const std::optional<HttpAnswer> answer = client.Read();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->events().back(), "[DONE]");
}

TEST_F(HttpBoundsTest, AClientThatDoesNotReadIsCutOff) {
  StartRouter();
  TalkALot(20000);
  HttpClient client(port());
  client.Send(StreamText());
  EXPECT_TRUE(Eventually([&] { return metrics_.slow_clients.Value() == 1; }));
  EXPECT_TRUE(Eventually([&] { return metrics_.requests.At(kChat).At("RESOURCE_EXHAUSTED").Value() == 1; }));
  EXPECT_FALSE(client.Read().has_value());  // it ends before its end
}

TEST_F(HttpBoundsTest, AClientThatOnlyPausesGetsEverything) {
  StartRouter();
  TalkALot(20000);
  HttpClient client(port());
  client.Send(StreamText());
  absl::SleepFor(absl::Milliseconds(500));
  const std::optional<HttpAnswer> answer = client.Read();
  ASSERT_TRUE(answer.has_value());
  const std::vector<Json> events = answer->events();
  EXPECT_EQ(events.back(), "[DONE]");
  size_t words = 0;
  for (const Json& event : events) {
    if (event.is_object()) words += event["choices"][0]["delta"].value("content", "").size() / 5;
  }
  EXPECT_EQ(words, 20000u);
}

TEST_F(HttpBoundsTest, StoppingRefusesNewRequestsAndLetsOldOnesEnd) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    Later([&running, attempt, reply = Reply("late")] {
      running = true;
      absl::SleepFor(absl::Milliseconds(400));
      attempt.Serve(reply);
    });
  });
  HttpClient old(port()), idle(port());
  idle.Send(GetText("/health"));
  EXPECT_EQ(idle.Read()->code, 200);
  old.Send(StreamText());
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  std::thread stop([&] { router_->Stop(absl::Seconds(10)); });
  while (Get("/health").code != 503) absl::SleepFor(absl::Milliseconds(2));
  const HttpAnswer late = Post(kChat, AskBody());
  EXPECT_EQ(late.code, 503);
  EXPECT_EQ(ErrorOf(late)["code"], "draining");
  EXPECT_EQ(late.headers.at("connection"), "close");
  const std::optional<HttpAnswer> answer = old.Read();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->events().back(), "[DONE]");
  stop.join();
  EXPECT_TRUE(idle.ServerCloses(absl::Seconds(5)));
}

class HttpQueueTest : public HttpTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = HttpTest::Config();
    config.max_in_flight = 1;
    config.http.max_buffered_bytes = 1 << 10;
    config.max_message_bytes = 1 << 10;
    return config;
  }
};

TEST_F(HttpQueueTest, OneMoreThanTheBoundIs429) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt&) { running = true; });
  HttpClient first(port());
  first.Send(PostText(kChat, AskBody()));
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  const HttpAnswer second = Post(kChat, AskBody());
  EXPECT_EQ(second.code, 429);
  EXPECT_EQ(ErrorOf(second)["code"], "queue_full");
  EXPECT_EQ(second.headers.at("retry-after"), "1");
}

TEST_F(HttpQueueTest, BodiesTogetherAreBounded) {
  StartRouter();
  HttpClient half(port());
  half.Send(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", std::string(900, ' ')));
  EXPECT_TRUE(Eventually([&] { return Post("/tokenize", std::string(500, ' ')).code == 503; }));
  EXPECT_EQ(Post(kChat, AskBody()).code, 200);  // fits beside it
  half.Close();
  EXPECT_TRUE(Eventually([&] { return Post("/tokenize", std::string(500, ' ')).code == 400; }));
}

}  // namespace
}  // namespace sluice
