// Keys and TLS over HTTP.
#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/auth/api_keys.h"
#include "common/rpc/certificate.h"
#include "tests/router/http/http_fixture.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_ca.h"

namespace sluice {
namespace {

class HttpKeysTest : public HttpTest {
 protected:
  HttpKeysTest() {
    alice_ = Issue("alice");
    bob_ = Issue("bob");
    operator_ = Issue("ops", {}, true);
    slow_ = Issue("slow", {.requests_per_minute = 1});
  }
  RouterConfig Config() override {
    RouterConfig config = HttpTest::Config();
    config.api_keys = dir_.path() + "/keys.json";
    return config;
  }
  std::string Issue(const std::string& owner, const KeyLimits& limits = {}, bool admin = false) {
    ApiKey key;
    key.owner = owner;
    key.limits = limits;
    key.admin = admin;
    const std::string secret = IssueKey(absl::Now(), &key);
    keys_.push_back(key);
    EXPECT_TRUE(WriteApiKeys(dir_.path() + "/keys.json", keys_).ok());
    return secret;
  }
  static std::string With(const std::string& key) {
    return key.empty() ? "" : absl::StrCat("Authorization: Bearer ", key, "\r\n");
  }
  TempDir dir_;
  std::vector<ApiKey> keys_;
  std::string alice_, bob_, operator_, slow_;
};

TEST_F(HttpKeysTest, EveryPathButHealthWantsAKey) {
  StartRouter();
  EXPECT_EQ(Get("/health").code, 200);
  const auto answers = [&](const std::string& key) {
    return std::vector<HttpAnswer>{RoundTrip(GetText("/v1/models", With(key))),
                                   RoundTrip(GetText("/v1/models/needle", With(key))),
                                   RoundTrip(PostText(kChat, AskBody(), With(key))),
                                   RoundTrip(PostText(kChat, AskBody(R"(, "stream": true)"), With(key))),
                                   RoundTrip(PostText("/v1/completions", R"({"prompt": "hi"})", With(key))),
                                   RoundTrip(PostText("/tokenize", R"({"prompt": "hi"})", With(key))),
                                   RoundTrip(PostText("/detokenize", R"({"tokens": [5]})", With(key)))};
  };
  for (const HttpAnswer& answer : answers("")) {
    EXPECT_EQ(answer.code, 401) << answer.body;
    EXPECT_EQ(ErrorOf(answer).at("code"), "no_api_key");
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
  }
  for (const HttpAnswer& answer : answers("sk-else")) EXPECT_EQ(answer.code, 401) << answer.body;
  for (const HttpAnswer& answer : answers(operator_)) EXPECT_EQ(answer.code, 403) << answer.body;
  EXPECT_TRUE(workers_.attempts().empty());
  for (const HttpAnswer& answer : answers(alice_)) EXPECT_EQ(answer.code, 200) << answer.body;
}

TEST_F(HttpKeysTest, AKeyOverItsLimitIsToldWhenToComeBack) {
  StartRouter();
  EXPECT_EQ(RoundTrip(PostText(kChat, AskBody(), With(slow_))).code, 200);
  const HttpAnswer refused = RoundTrip(PostText(kChat, AskBody(), With(slow_)));
  EXPECT_EQ(refused.code, 429);
  EXPECT_EQ(ErrorOf(refused).at("code"), "rate_limit");
  const int seconds = std::stoi(refused.headers.at("retry-after"));
  EXPECT_GT(seconds, 30);
  EXPECT_LE(seconds, 60);
}

TEST_F(HttpKeysTest, AnotherOwnersSessionDoesNotExist) {
  StartRouter();
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + alice_);
  v1::Session session;
  ASSERT_TRUE(sessions_->CreateSession(&context, {}, &session).ok());
  const std::string body = AskBody(absl::StrCat(R"(, "sluice": {"session_id": ")", session.id(), R"("})"));
  EXPECT_EQ(RoundTrip(PostText(kChat, body, With(bob_))).code, 404);
  EXPECT_EQ(RoundTrip(PostText(kChat, body, With(alice_))).code, 200);
}

class HttpTlsTest : public HttpTest {
 protected:
  HttpTlsTest() : ca_(dir_.path(), "ca"), other_(dir_.path(), "other") { ca_.Issue("router"); }
  RouterConfig Config() override {
    RouterConfig config = HttpTest::Config();
    TlsFiles files;
    files.cert = {ca_.Crt("router"), "--tls-cert"};
    files.key = {ca_.Key("router"), "--tls-key"};
    tls_ = config.tls = *Tls::Open(files, TlsUse::kServer);
    return config;
  }
  absl::Status Probe(const TestCa& ca) {
    TlsFiles files;
    files.ca = {ca.path(), "--ca"};
    return ProbeTls(absl::StrCat("127.0.0.1:", port()), files, "", kPatience * absl::Seconds(5));
  }
  // What the server answers over TLS; empty: nothing.
  std::string Ask(const std::string& text) {
    HttpClient client(port());
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_load_verify_locations(context, ca_.path().c_str(), nullptr);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, client.fd());
    std::string answer;
    if (SSL_connect(ssl) == 1 && SSL_write(ssl, text.data(), static_cast<int>(text.size())) > 0) {
      char buffer[4096];
      for (int n; (n = SSL_read(ssl, buffer, sizeof(buffer))) > 0;) {
        answer.append(buffer, static_cast<size_t>(n));
      }
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    return answer;
  }
  TempDir dir_;
  TestCa ca_, other_;
  std::shared_ptr<Tls> tls_;
};

TEST_F(HttpTlsTest, AnswersAndStreamsComeOverTlsAndOnlyOverIt) {
  StartRouter({}, {});
  const std::string models = Ask(GetText("/v1/models", "Connection: close\r\n"));
  EXPECT_THAT(models, testing::StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(models, testing::HasSubstr("needle"));
  EXPECT_EQ(Probe(other_).code(), absl::StatusCode::kUnauthenticated);
  HttpClient plain(port());
  plain.Send(GetText("/v1/models"));
  EXPECT_FALSE(plain.Read().has_value());
}

TEST_F(HttpTlsTest, NewCertificatesServeWithoutARestart) {
  StartRouter({}, {});
  EXPECT_TRUE(Probe(ca_).ok());
  EXPECT_FALSE(Probe(other_).ok());
  other_.Issue("router");
  tls_->Reload();
  EXPECT_TRUE(Probe(other_).ok());
  EXPECT_FALSE(Probe(ca_).ok());
}

}  // namespace
}  // namespace sluice
