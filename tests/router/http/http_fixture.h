// Role: a router in this process that serves HTTP, with fake workers. Threads: as RouterTest.
#pragma once

#include <string>

#include "tests/router/http/http_client.h"
#include "tests/router/router_fixture.h"

namespace sluice {

inline constexpr char kChat[] = "/v1/chat/completions";

class HttpTest : public RouterTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.http.listen = "127.0.0.1:0";
    return config;
  }
  int port() const { return router_->http_port(); }

  // more: members of the object, each with a comma before it.
  static std::string AskBody(const std::string& more = "") {
    return R"({"messages": [{"role": "user", "content": "hi"}], "temperature": 0)" + more + "}";
  }
  // One request on a connection of its own.
  HttpAnswer Get(const std::string& path) { return RoundTrip(GetText(path)); }
  HttpAnswer Post(const std::string& path, const std::string& body) {
    return RoundTrip(PostText(path, body));
  }
  HttpAnswer RoundTrip(const std::string& bytes) {
    HttpClient client(port());
    client.Send(bytes);
    std::optional<HttpAnswer> answer = client.Read();
    EXPECT_TRUE(answer.has_value()) << "no answer to " << bytes.substr(0, 200);
    return answer.value_or(HttpAnswer());
  }
  // The error of an answer.
  static nlohmann::json ErrorOf(const HttpAnswer& answer) { return answer.json().at("error"); }
};

}  // namespace sluice
