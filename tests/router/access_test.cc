// Keys: who may ask a router, how much, and what others see of it.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <set>

#include "common/auth/api_keys.h"
#include "common/rpc/status_codec.h"
#include "router/authenticator.h"
#include "sluice/v1/models.grpc.pb.h"
#include "tests/router/router_fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using grpc::StatusCode;

class AccessTest : public RouterTest {
 protected:
  AccessTest() {
    alice_ = Issue("alice");
    bob_ = Issue("bob");
    operator_ = Issue("ops", {}, /*admin=*/true);
  }
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.api_keys = path();
    return config;
  }
  std::string path() const { return dir_.path() + "/keys.json"; }
  std::string Issue(const std::string& owner, const KeyLimits& limits = {}, bool admin = false) {
    ApiKey key;
    key.owner = owner;
    key.admin = admin;
    key.limits = limits;
    const std::string secret = IssueKey(absl::Now(), &key);
    keys_.push_back(key);
    EXPECT_TRUE(WriteApiKeys(path(), keys_).ok());
    return secret;
  }

  template <class Stub, class Request, class Response>
  grpc::Status Call(const std::string& key, Stub* stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    Show(key, &context);
    return (stub->*method)(&context, request, response);
  }
  static void Show(const std::string& key, grpc::ClientContext* context) {
    if (!key.empty()) context->AddMetadata("authorization", "Bearer " + key);
  }
  grpc::Status Chat(const std::string& key, const v1::ChatRequest& request) {
    v1::ChatResponse response;
    return Call(key, inference_.get(), &v1::Inference::Stub::Chat, request, &response);
  }
  std::string NewSession(const std::string& key) {
    v1::Session session;
    EXPECT_TRUE(Call(key, sessions_.get(), &v1::Sessions::Stub::CreateSession, {}, &session).ok());
    return session.id();
  }
  std::set<std::string> SessionsOf(const std::string& key) {
    v1::ListSessionsResponse page;
    EXPECT_TRUE(Call(key, sessions_.get(), &v1::Sessions::Stub::ListSessions, {}, &page).ok());
    std::set<std::string> ids;
    for (const v1::Session& session : page.sessions()) ids.insert(session.id());
    return ids;
  }

  TempDir dir_;
  std::vector<ApiKey> keys_;
  std::string alice_, bob_, operator_;
};

TEST_F(AccessTest, EveryPublicCallWantsAKey) {
  StartRouter();
  auto models = v1::Models::NewStub(channel_);
  std::string forged = alice_;
  forged.back() = forged.back() == '0' ? '1' : '0';
  for (const std::string& key : {std::string(), std::string("sk-else"), forged}) {
    const auto refused = [&](const grpc::Status& status) {
      EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << key << status.error_message();
      EXPECT_EQ(ReasonOf(FromGrpcStatus(status)), key.empty() ? "NO_API_KEY" : "UNKNOWN_API_KEY");
    };
    refused(Chat(key, Ask("hi")));
    grpc::ClientContext stream_context;
    Show(key, &stream_context);
    refused(Stream(Ask("hi"), &stream_context).status);
    v1::ChatResponse reply;
    v1::CompleteRequest complete;
    complete.set_prompt("x");
    refused(Call(key, inference_.get(), &v1::Inference::Stub::Complete, complete, &reply));
    v1::TokenizeResponse ids;
    refused(Call(key, inference_.get(), &v1::Inference::Stub::Tokenize, {}, &ids));
    v1::DetokenizeResponse text;
    refused(Call(key, inference_.get(), &v1::Inference::Stub::Detokenize, {}, &text));
    v1::RenderTemplateResponse rendered;
    refused(Call(key, inference_.get(), &v1::Inference::Stub::RenderTemplate, {}, &rendered));
    v1::CountTokensResponse count;
    refused(Call(key, inference_.get(), &v1::Inference::Stub::CountTokens, {}, &count));
    v1::Session session;
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::CreateSession, {}, &session));
    v1::ListSessionsResponse page;
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::ListSessions, {}, &page));
    v1::GetSessionResponse found;
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::GetSession, {}, &found));
    v1::DeleteSessionResponse deleted;
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::DeleteSession, {}, &deleted));
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::ForkSession, {}, &session));
    refused(Call(key, sessions_.get(), &v1::Sessions::Stub::TruncateSession, {}, &session));
    v1::ListModelsResponse list;
    refused(Call(key, models.get(), &v1::Models::Stub::ListModels, {}, &list));
    v1::Model model;
    refused(Call(key, models.get(), &v1::Models::Stub::GetModel, {}, &model));
  }
  EXPECT_TRUE(workers_.attempts().empty());
  EXPECT_TRUE(Chat(alice_, Ask("hi")).ok());
}

TEST_F(AccessTest, TheAdminPortHasKeysOfItsOwn) {
  StartRouter();
  const auto on_admin = [&](const std::string& key) {
    v1::ListWorkersResponse workers;
    return Call(key, admin_.get(), &v1::Admin::Stub::ListWorkers, {}, &workers).error_code();
  };
  EXPECT_EQ(on_admin(""), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(on_admin(alice_), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(on_admin(operator_), StatusCode::OK);
  EXPECT_EQ(Chat(operator_, Ask("hi")).error_code(), StatusCode::PERMISSION_DENIED);

  const auto denied = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << status.error_message();
  };
  using Admin = v1::Admin::Stub;
  v1::Stats stats;
  denied(Call(alice_, admin_.get(), &Admin::GetStats, {}, &stats));
  v1::UndrainResponse undrained;
  denied(Call(alice_, admin_.get(), &Admin::Undrain, {}, &undrained));
  v1::AbortRequestResponse aborted;
  denied(Call(alice_, admin_.get(), &Admin::AbortRequest, {}, &aborted));
  v1::FlushCacheResponse flushed;
  denied(Call(alice_, admin_.get(), &Admin::FlushCache, {}, &flushed));
  v1::SetLogLevelResponse level;
  denied(Call(alice_, admin_.get(), &Admin::SetLogLevel, {}, &level));
  v1::SetDefaultsResponse defaults;
  denied(Call(alice_, admin_.get(), &Admin::SetDefaults, {}, &defaults));
  for (const bool drain : {false, true}) {
    grpc::ClientContext context;
    Show(alice_, &context);
    if (drain) {
      denied(admin_->Drain(&context, {})->Finish());
    } else {
      denied(admin_->WatchStats(&context, {})->Finish());
    }
  }
  EXPECT_TRUE(Chat(alice_, Ask("hi")).ok()) << "nothing was drained";
}

TEST_F(AccessTest, AnotherOwnersSessionDoesNotExist) {
  StartRouter();
  const std::string own = NewSession(alice_), others = NewSession(bob_);
  ASSERT_TRUE(Chat(alice_, AskIn(own, "hello")).ok());
  EXPECT_EQ(SessionsOf(alice_), (std::set<std::string>{own}));
  EXPECT_EQ(SessionsOf(bob_), (std::set<std::string>{others}));

  const size_t asked = workers_.attempts().size();
  const auto missing = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << status.error_message();
  };
  missing(Chat(bob_, AskIn(own, "hello")));
  v1::GetSessionRequest get;
  get.set_session_id(own);
  v1::GetSessionResponse found;
  missing(Call(bob_, sessions_.get(), &v1::Sessions::Stub::GetSession, get, &found));
  EXPECT_TRUE(Call(alice_, sessions_.get(), &v1::Sessions::Stub::GetSession, get, &found).ok());
  v1::ForkSessionRequest fork;
  fork.set_session_id(own);
  v1::Session forked;
  missing(Call(bob_, sessions_.get(), &v1::Sessions::Stub::ForkSession, fork, &forked));
  v1::TruncateSessionRequest truncate;
  truncate.set_session_id(own);
  truncate.set_turn_id(found.session().head_turn_id());
  missing(Call(bob_, sessions_.get(), &v1::Sessions::Stub::TruncateSession, truncate, &forked));
  v1::DeleteSessionRequest remove;
  remove.set_session_id(own);
  v1::DeleteSessionResponse removed;
  missing(Call(bob_, sessions_.get(), &v1::Sessions::Stub::DeleteSession, remove, &removed));
  EXPECT_EQ(workers_.attempts().size(), asked);
  EXPECT_EQ(SessionsOf(alice_), (std::set<std::string>{own}));
  // The same words as for a session that is nobody's.
  const grpc::Status of_bob = Chat(bob_, AskIn(own, "hello"));
  const std::string none(32, '0');
  std::string nobodys = Chat(bob_, AskIn(none, "hello")).error_message();
  nobodys.replace(nobodys.find(none), none.size(), own);
  EXPECT_EQ(of_bob.error_message(), nobodys);
}

TEST_F(AccessTest, OwnerAndSaltReachPrefill) {
  StartRouter();
  const std::string session = NewSession(alice_);
  v1::ChatRequest request = AskIn(session, "hello");
  request.set_cache_salt("pepper");
  ASSERT_TRUE(Chat(alice_, request).ok());
  ASSERT_EQ(workers_.attempts().size(), 1);
  EXPECT_EQ(workers_.attempts()[0].prefill_request.owner(), "alice");
  EXPECT_EQ(workers_.attempts()[0].prefill_request.cache_salt(), "pepper");
  request.set_cache_salt(std::string(129, 'x'));
  const grpc::Status status = Chat(alice_, request);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("cache_salt: 129 bytes"));
}

TEST_F(AccessTest, AKeyOverItsLimitIsToldWhenToComeBack) {
  const std::string carol = Issue("carol", {.requests_per_minute = 2});
  StartRouter();
  EXPECT_TRUE(Chat(carol, Ask("hi")).ok());
  EXPECT_TRUE(Chat(carol, Ask("hi")).ok());
  const grpc::Status refused = Chat(carol, Ask("hi"));
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const absl::Status status = FromGrpcStatus(refused);
  EXPECT_EQ(ReasonOf(status), "RATE_LIMIT");
  ASSERT_TRUE(RetryAfterOf(status).has_value());
  EXPECT_GT(*RetryAfterOf(status), absl::Seconds(15));
  EXPECT_LE(*RetryAfterOf(status), absl::Seconds(30));
  EXPECT_THAT(refused.error_details(), testing::HasSubstr("QuotaFailure"));
  EXPECT_TRUE(Chat(alice_, Ask("hi")).ok()) << "others are served";
}

TEST_F(AccessTest, TokensOfPromptsAndRepliesCount) {
  const std::string carol = Issue("carol", {.tokens_per_minute = 5});
  StartRouter();
  EXPECT_TRUE(Chat(carol, Ask("one two three four five six seven")).ok()) << "known after it is used";
  EXPECT_EQ(Chat(carol, Ask("hi")).error_code(), StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(AccessTest, RequestsInFlightAreBoundedAndOneThatEndedIsNone) {
  const std::string carol = Issue("carol", {.in_flight = 1});
  StartRouter();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Chat(carol, Ask("hi")).ok()) << i;
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.FirstToken(Reply("x")[0]);
    running = true;
  });
  grpc::ClientContext context;
  Show(carol, &context);
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("hi"));
  ASSERT_TRUE(Eventually([&] { return running.load(); }));
  EXPECT_EQ(Chat(carol, Ask("hi")).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  v1::ListSessionsResponse page;
  EXPECT_EQ(Call(carol, sessions_.get(), &v1::Sessions::Stub::ListSessions, {}, &page).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(Eventually(
      [&] { return Call(carol, sessions_.get(), &v1::Sessions::Stub::ListSessions, {}, &page).ok(); }));
}

TEST_F(AccessTest, TheFileIsReadAgainWhenItChanges) {
  StartRouter();
  const std::string dave = Issue("dave");
  EXPECT_TRUE(Eventually([&] { return Chat(dave, Ask("hi")).ok(); }));
  const ApiKey alices = keys_[0];
  keys_.erase(keys_.begin());
  ASSERT_TRUE(WriteApiKeys(path(), keys_).ok());
  EXPECT_TRUE(
      Eventually([&] { return Chat(alice_, Ask("hi")).error_code() == StatusCode::UNAUTHENTICATED; }));
  // A damaged file, or none, changes nothing.
  dir_.Write("keys.json", "{");
  absl::SleepFor(absl::Seconds(1));
  EXPECT_TRUE(Chat(dave, Ask("hi")).ok());
  std::filesystem::remove(path());
  absl::SleepFor(absl::Seconds(1));
  EXPECT_TRUE(Chat(dave, Ask("hi")).ok());
  EXPECT_EQ(Chat("", Ask("hi")).error_code(), StatusCode::UNAUTHENTICATED);
  keys_.push_back(alices);
  ASSERT_TRUE(WriteApiKeys(path(), keys_).ok());
  EXPECT_TRUE(Eventually([&] { return Chat(alice_, Ask("hi")).ok(); }));
}

TEST_F(AccessTest, ARouterDoesNotStartWithoutTheFileItIsGiven) {
  RouterConfig config = Config();
  config.api_keys = dir_.path() + "/none.json";
  const absl::Status status = Router::Start(config, Model(), nullptr, &metrics_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--api-keys " + config.api_keys));
}

TEST(KeyUseTest, ABucketRefillsOverAMinute) {
  ManualClock clock;
  KeyUse use("k");
  const KeyLimits limits{.requests_per_minute = 60};
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(use.Begin(limits, clock.Now()).ok()) << i;
  const absl::Status refused = use.Begin(limits, clock.Now());
  EXPECT_EQ(RetryAfterOf(refused), absl::Seconds(1));
  clock.Advance(absl::Milliseconds(999));
  EXPECT_FALSE(use.Begin(limits, clock.Now()).ok());
  clock.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(use.Begin(limits, clock.Now()).ok());
  clock.Advance(absl::Hours(1));
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(use.Begin(limits, clock.Now()).ok()) << i;
  EXPECT_FALSE(use.Begin(limits, clock.Now()).ok()) << "no more than a minute's worth is saved";
}

TEST(KeyUseTest, TokensAreOwedAndPaidBack) {
  ManualClock clock;
  KeyUse use("k");
  const KeyLimits limits{.tokens_per_minute = 600};
  ASSERT_TRUE(use.Begin(limits, clock.Now()).ok());
  use.SpendTokens(1200);  // 600 are owed
  EXPECT_EQ(RetryAfterOf(use.Begin(limits, clock.Now())), absl::Milliseconds(60100));
  clock.Advance(absl::Milliseconds(60000));
  EXPECT_FALSE(use.Begin(limits, clock.Now()).ok());
  clock.Advance(absl::Milliseconds(100));
  EXPECT_TRUE(use.Begin(limits, clock.Now()).ok());
  // A limit that was raised holds at once.
  use.SpendTokens(10);
  EXPECT_TRUE(use.Begin({.in_flight = 4}, clock.Now()).ok());
  EXPECT_FALSE(use.Begin({.in_flight = 3}, clock.Now()).ok());
  use.End();
  EXPECT_TRUE(use.Begin({.in_flight = 3}, clock.Now()).ok());
}

}  // namespace
}  // namespace sluice
