// What operators may do to a running router.
#include <gmock/gmock.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "sluice/v1/models.grpc.pb.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class AdminTest : public RouterTest {
 protected:
  template <class Request, class Response>
  grpc::Status Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (admin_.get()->*method)(&context, request, response);
  }
};

TEST_F(AdminTest, AnAbortedRequestEndsAndItsSlotIsFree) {
  StartRouter();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) {
    attempt.FirstToken(Reply("x")[0]);
    running = true;
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = inference_->ChatStream(&context, Ask("hi"));
  v1::ChatEvent event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(event.has_started());
  ASSERT_TRUE(Eventually([&] { return running.load(); }));
  v1::AbortRequestRequest request;
  request.set_request_id(event.started().request_id());
  v1::AbortRequestResponse response;
  ASSERT_TRUE(Call(&v1::Admin::Stub::AbortRequest, request, &response).ok());
  while (reader->Read(&event)) EXPECT_FALSE(event.has_done());
  grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(status)), "ABORTED_BY_OPERATOR");
  ASSERT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
  EXPECT_TRUE(Eventually([&] { return workers_.cancelled_prefills() + workers_.cancelled_decodes() > 0; }));
  EXPECT_EQ(Call(&v1::Admin::Stub::AbortRequest, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request.clear_request_id();
  EXPECT_EQ(Call(&v1::Admin::Stub::AbortRequest, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, StatsAreWatched) {
  StartRouter();
  v1::WatchStatsRequest request;
  request.set_interval_seconds(0.1);
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::Stats>> reader = admin_->WatchStats(&context, request);
  v1::Stats stats;
  ASSERT_TRUE(reader->Read(&stats));
  EXPECT_EQ(stats.requests_total(), 0);
  EXPECT_EQ(stats.ready_prefill(), 2);
  grpc::ClientContext create_context;
  v1::Session session;
  ASSERT_TRUE(sessions_->CreateSession(&create_context, v1::CreateSessionRequest(), &session).ok());
  ASSERT_TRUE(Stream(AskIn(session.id(), "hi")).status.ok());
  while (stats.requests_total() == 0) ASSERT_TRUE(reader->Read(&stats));
  EXPECT_EQ(stats.sessions(), 1);
  EXPECT_GT(stats.session_bytes(), 0);
  context.TryCancel();
  while (reader->Read(&stats)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);

  for (double interval : {0.0, 3601.0}) {
    request.set_interval_seconds(interval);
    grpc::ClientContext bad;
    std::unique_ptr<grpc::ClientReader<v1::Stats>> refused = admin_->WatchStats(&bad, request);
    EXPECT_FALSE(refused->Read(&stats));
    EXPECT_THAT(refused->Finish().error_message(), HasSubstr("interval_seconds"));
  }
}

TEST_F(AdminTest, AWatcherDoesNotKeepTheRouterUp) {
  StartRouter(nullptr, {});
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::Stats>> reader =
      admin_->WatchStats(&context, v1::WatchStatsRequest());
  v1::Stats stats;
  ASSERT_TRUE(reader->Read(&stats));
  const absl::Time begin = absl::Now();
  router_->Stop(absl::Seconds(5));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
  while (reader->Read(&stats)) continue;
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(AdminTest, PrefillWorkersForgetWhatTheyHold) {
  StartRouter();
  v1::FlushCacheRequest request;
  v1::FlushCacheResponse response;
  ASSERT_TRUE(Call(&v1::Admin::Stub::FlushCache, request, &response).ok());
  std::vector<std::string> names;
  for (const v1::FlushedWorker& worker : response.workers()) {
    names.push_back(worker.name());
    EXPECT_EQ(worker.freed_bytes(), 7);
    EXPECT_EQ(worker.error(), "");
  }
  EXPECT_THAT(names, UnorderedElementsAre("p1", "p2"));
  request.set_worker("p2");
  response.Clear();
  ASSERT_TRUE(Call(&v1::Admin::Stub::FlushCache, request, &response).ok());
  ASSERT_THAT(response.workers(), SizeIs(1));
  ASSERT_THAT(workers_.forgotten(), SizeIs(3));
  EXPECT_EQ(workers_.forgotten()[2].first, "p2");
  EXPECT_TRUE(workers_.forgotten()[2].second.everything());
  for (const char* name : {"d1", "nobody"}) {  // decode holds nothing of sessions
    request.set_worker(name);
    EXPECT_EQ(Call(&v1::Admin::Stub::FlushCache, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(AdminTest, TheLogLevelIsSetAndTold) {
  StartRouter(nullptr, {});
  const spdlog::level::level_enum before = spdlog::get_level();
  spdlog::set_level(spdlog::level::info);
  v1::SetLogLevelRequest request;
  request.set_level("warn");
  v1::SetLogLevelResponse response;
  ASSERT_TRUE(Call(&v1::Admin::Stub::SetLogLevel, request, &response).ok());
  EXPECT_EQ(response.previous(), "info");
  EXPECT_EQ(spdlog::get_level(), spdlog::level::warn);
  for (const char* level : {"", "WARN", "off", "loud"}) {
    request.set_level(level);
    grpc::Status status = Call(&v1::Admin::Stub::SetLogLevel, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << level;
    EXPECT_THAT(status.error_message(), HasSubstr("trace, debug, info, warn, error"));
  }
  EXPECT_EQ(spdlog::get_level(), spdlog::level::warn);
  spdlog::set_level(before);
}

TEST_F(AdminTest, DefaultsAreWhatRequestsGetThatLeaveThemUnset) {
  StartRouter();
  v1::SetDefaultsRequest request;
  v1::SetDefaultsResponse now;
  ASSERT_TRUE(Call(&v1::Admin::Stub::SetDefaults, request, &now).ok());
  EXPECT_EQ(now.preset(), kSinglePreset);
  EXPECT_EQ(now.session_preset(), kSessionPreset);
  EXPECT_EQ(now.budget_tokens(), 0);
  EXPECT_EQ(now.timeout_seconds(), 600);
  request.set_preset("snapkv");
  request.set_session_preset("full");
  request.set_budget_tokens(64);
  request.set_timeout_seconds(30);
  ASSERT_TRUE(Call(&v1::Admin::Stub::SetDefaults, request, &now).ok());
  ASSERT_TRUE(Call(&v1::Admin::Stub::SetDefaults, v1::SetDefaultsRequest(), &now).ok());
  EXPECT_EQ(now.preset(), "snapkv");
  EXPECT_EQ(now.timeout_seconds(), 30);

  std::string text;
  for (int i = 0; i < 100; ++i) text += "word ";
  v1::ChatRequest asked = Ask(text);
  asked.mutable_compression()->set_min_prompt_tokens(0);
  ASSERT_TRUE(Stream(asked).status.ok());
  asked.mutable_compression()->set_budget_tokens(80);
  ASSERT_TRUE(Stream(asked).status.ok());
  grpc::ClientContext create_context;
  v1::Session session;
  ASSERT_TRUE(sessions_->CreateSession(&create_context, v1::CreateSessionRequest(), &session).ok());
  ASSERT_TRUE(Stream(AskIn(session.id(), "hi")).status.ok());
  std::vector<FakeAttempt> attempts = workers_.attempts();
  EXPECT_EQ(attempts[0].prefill_request.gates().method(), "snapkv");
  EXPECT_EQ(attempts[0].prefill_request.gates().retention_budget(), 64);
  EXPECT_EQ(attempts[1].prefill_request.gates().retention_budget(), 80);
  EXPECT_EQ(attempts[2].prefill_request.gates().method(), "full");

  std::unique_ptr<v1::Models::Stub> models = v1::Models::NewStub(channel_);
  grpc::ClientContext models_context;
  v1::ListModelsResponse listed;
  ASSERT_TRUE(models->ListModels(&models_context, v1::ListModelsRequest(), &listed).ok());
  EXPECT_EQ(listed.models(0).default_preset(), "snapkv");
  EXPECT_EQ(listed.models(0).default_session_preset(), "full");
}

TEST_F(AdminTest, BadDefaultsChangeNothing) {
  StartRouter(nullptr, {});
  struct Case {
    const char* field;
    void (*change)(v1::SetDefaultsRequest&);
  };
  const Case cases[] = {
      {"preset", [](v1::SetDefaultsRequest& r) { r.set_preset("best"); }},
      {"session_preset", [](v1::SetDefaultsRequest& r) { r.set_session_preset(""); }},
      {"budget_tokens", [](v1::SetDefaultsRequest& r) { r.set_budget_tokens(63); }},
      {"budget_tokens", [](v1::SetDefaultsRequest& r) { r.set_budget_tokens(-1); }},
      {"timeout_seconds", [](v1::SetDefaultsRequest& r) { r.set_timeout_seconds(0); }},
      {"timeout_seconds", [](v1::SetDefaultsRequest& r) { r.set_timeout_seconds(1e7); }},
  };
  for (const Case& c : cases) {
    v1::SetDefaultsRequest request;
    request.set_preset("full");
    c.change(request);
    v1::SetDefaultsResponse now;
    grpc::Status status = Call(&v1::Admin::Stub::SetDefaults, request, &now);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.field;
    EXPECT_EQ(status.error_message().rfind(std::string(c.field) + ":", 0), 0u) << status.error_message();
    ASSERT_TRUE(Call(&v1::Admin::Stub::SetDefaults, v1::SetDefaultsRequest(), &now).ok());
    EXPECT_EQ(now.preset(), kSinglePreset);
  }
}

}  // namespace
}  // namespace sluice
