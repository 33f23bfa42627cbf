// What bounds conversations: truncation, quotas, a time to live, pages; and that workers hear of what goes.
#include <gmock/gmock.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "common/session/memory_store.h"
#include "common/session/sqlite_store.h"
#include "router/history_release.h"
#include "sluice/v1/errors.pb.h"
#include "tests/router/router_fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SessionBoundsTest : public RouterTest {
 protected:
  grpc::Status Create(v1::Session* session) {
    grpc::ClientContext context;
    return sessions_->CreateSession(&context, v1::CreateSessionRequest(), session);
  }
  std::string Create() {
    v1::Session session;
    grpc::Status status = Create(&session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session.id();
  }
  grpc::Status Get(const std::string& id, v1::GetSessionResponse* response) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id(id);
    return sessions_->GetSession(&context, request, response);
  }
  std::vector<std::string> TurnIds(const std::string& id) {
    v1::GetSessionResponse response;
    grpc::Status status = Get(id, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> ids;
    for (const v1::Turn& turn : response.turns()) ids.push_back(turn.id());
    return ids;
  }
  grpc::Status Truncate(const std::string& id, const std::string& turn_id, v1::Session* session) {
    grpc::ClientContext context;
    v1::TruncateSessionRequest request;
    request.set_session_id(id);
    request.set_turn_id(turn_id);
    return sessions_->TruncateSession(&context, request, session);
  }
  grpc::Status Delete(const std::string& id) {
    grpc::ClientContext context;
    v1::DeleteSessionRequest request;
    request.set_session_id(id);
    v1::DeleteSessionResponse response;
    return sessions_->DeleteSession(&context, request, &response);
  }
  void Say(const std::string& id, const std::string& text) {
    SeenReply reply = Stream(AskIn(id, text));
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  }
  std::vector<int32_t> PromptOf(size_t attempt) {
    auto ids = workers_.attempts().at(attempt).prefill_request.prompt_ids();
    return {ids.begin(), ids.end()};
  }
  static void ExpectQuota(const grpc::Status& status, const std::string& subject) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(FromGrpcStatus(status)), "SESSION_QUOTA");
    absl::optional<absl::Cord> detail =
        FromGrpcStatus(status).GetPayload("type.googleapis.com/google.rpc.QuotaFailure");
    ASSERT_TRUE(detail.has_value());
    v1::QuotaFailure failure;
    ASSERT_TRUE(failure.ParseFromString(std::string(*detail)));
    EXPECT_EQ(failure.violations(0).subject(), subject);
  }
};

TEST_F(SessionBoundsTest, ATruncatedSessionGoesOnFromThere) {
  StartRouter();
  std::string id = Create();
  for (const char* text : {"one", "two", "three"}) Say(id, text);
  std::vector<std::string> turns = TurnIds(id);
  v1::Session cut;
  grpc::Status status = Truncate(id, turns[0], &cut);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(cut.turns(), 1);
  EXPECT_EQ(cut.head_turn_id(), turns[0]);
  EXPECT_THAT(TurnIds(id), ElementsAre(turns[0]));
  Say(id, "two");
  EXPECT_EQ(PromptOf(3), PromptOf(1));
  EXPECT_EQ(workers_.attempts()[3].prefill_request.parent_turn_id(), turns[0]);
}

TEST_F(SessionBoundsTest, ATruncationSurvivesARestart) {
  TempDir dir;
  StartRouter(*OpenSqliteStore(dir.path() + "/s.db", {}));
  std::string id = Create();
  for (const char* text : {"one", "two"}) Say(id, text);
  std::vector<std::string> turns = TurnIds(id);
  v1::Session cut;
  ASSERT_TRUE(Truncate(id, turns[0], &cut).ok());
  router_->Stop(absl::Seconds(5));
  router_.reset();
  for (const char* name : {"p1", "p2", "d1", "d2"}) workers_.Kill(name);

  StartRouter(*OpenSqliteStore(dir.path() + "/s.db", {}), {"p3", "d3"});
  EXPECT_THAT(TurnIds(id), ElementsAre(turns[0]));
  Say(id, "two");
  EXPECT_EQ(PromptOf(2), PromptOf(1));
}

TEST_F(SessionBoundsTest, WhatCannotBeTruncatedSaysWhy) {
  StartRouter();
  std::string id = Create();
  Say(id, "one");
  std::string turn = TurnIds(id)[0];
  v1::Session cut;
  grpc::Status status = Truncate("", turn, &cut);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("session_id"));
  status = Truncate(id, "", &cut);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("turn_id"));
  EXPECT_EQ(Truncate("0123", turn, &cut).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Truncate(id, "0123", &cut).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(TurnIds(id), ElementsAre(turn));
}

TEST_F(SessionBoundsTest, ARunningTurnIsNotCutOff) {
  StartRouter();
  std::string id = Create();
  Say(id, "one");
  std::string turn = TurnIds(id)[0];
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt&) { running = true; });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader =
      inference_->ChatStream(&context, AskIn(id, "two"));
  ASSERT_TRUE(Eventually([&] { return running.load(); }));
  v1::Session cut;
  grpc::Status status = Truncate(id, turn, &cut);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(status)), "TURN_IN_PROGRESS");
  context.TryCancel();
  reader->Finish();
  ASSERT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
  EXPECT_TRUE(Truncate(id, turn, &cut).ok());
}

TEST_F(SessionBoundsTest, TheHomeHearsWhichTurnsAreNoMore) {
  StartRouter();
  std::string id = Create();
  for (const char* text : {"one", "two", "three"}) Say(id, text);
  std::vector<std::string> turns = TurnIds(id);
  v1::Session cut;
  ASSERT_TRUE(Truncate(id, turns[0], &cut).ok());
  ASSERT_TRUE(Eventually([&] { return workers_.forgotten().size() == 1; }));
  auto [worker, forgotten] = workers_.forgotten()[0];
  EXPECT_EQ(worker, workers_.attempts()[0].prefill_name);
  EXPECT_THAT(forgotten.turn_ids(), ElementsAre(turns[1], turns[2]));
  // The third turn's ids begin with the second's; the first turn's stay.
  std::vector<int32_t> all = PromptOf(2), kept = PromptOf(0);
  for (int32_t token : Reply("hello there", false)) all.push_back(token);
  ASSERT_THAT(forgotten.prompts(), SizeIs(1));
  EXPECT_THAT(forgotten.prompts(0).ids(), ElementsAreArray(all));
  EXPECT_EQ(forgotten.prompts(0).keep_tokens(),
            static_cast<int>(kept.size() + Reply("hello there", false).size()));

  ASSERT_TRUE(Delete(id).ok());
  ASSERT_TRUE(Eventually([&] { return workers_.forgotten().size() == 2; }));
  forgotten = workers_.forgotten()[1].second;
  EXPECT_THAT(forgotten.turn_ids(), ElementsAre(turns[0]));
  EXPECT_EQ(forgotten.prompts(0).keep_tokens(), 0);
}

Turn TurnWith(const std::string& id, std::vector<int32_t> prompt, std::vector<int32_t> emitted) {
  Turn turn;
  turn.id = id;
  turn.prompt_ids = std::move(prompt);
  turn.emitted_ids = std::move(emitted);
  return turn;
}

TEST(ForgetRequestTest, PromptsThatARewriteLeftAreNamedToo) {
  std::vector<Turn> path = {TurnWith("a", {1, 2}, {3}), TurnWith("b", {1, 2, 3, 4}, {5}),
                            TurnWith("c", {1, 2, 9}, {6}), TurnWith("d", {1, 2, 9, 6, 7}, {})};
  internal::v1::ForgetRequest request = ForgetRequestOf("ada", path, {"b", "c", "d"});
  EXPECT_EQ(request.owner(), "ada");
  ASSERT_THAT(request.prompts(), SizeIs(2));
  EXPECT_THAT(request.prompts(0).ids(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(request.prompts(0).keep_tokens(), 3);
  EXPECT_THAT(request.prompts(1).ids(), ElementsAre(1, 2, 9, 6, 7));
  EXPECT_EQ(request.prompts(1).keep_tokens(), 2);
  // A path that has moved on meanwhile tells nothing of prompts.
  EXPECT_THAT(ForgetRequestOf("ada", path, {"c"}).prompts(), IsEmpty());
}

TEST_F(SessionBoundsTest, AFullOwnerIsToldItsQuota) {
  StartRouter(NewMemoryStore({.max_sessions_per_owner = 2, .max_bytes_per_owner = 100}));
  std::string id = Create();
  Create();
  v1::Session session;
  ExpectQuota(Create(&session), "sessions of owner ''");
  grpc::ClientContext context;
  v1::ForkSessionRequest fork;
  fork.set_session_id(id);
  ExpectQuota(sessions_->ForkSession(&context, fork, &session), "sessions of owner ''");

  Say(id, std::string(80, 'x'));  // with its ids above 100 bytes
  SeenReply refused = Stream(AskIn(id, "more"));
  ExpectQuota(refused.status, "session bytes of owner ''");
  EXPECT_THAT(workers_.attempts(), SizeIs(1));  // nothing was computed for it
  EXPECT_TRUE(Stream(Ask("without a session")).status.ok());
  ASSERT_TRUE(Delete(id).ok());
  Say(Create(), "room again");
}

TEST_F(SessionBoundsTest, PagesAreBoundedAndTheirTokensChecked) {
  StartRouter(nullptr, {});
  v1::ListSessionsRequest request;
  v1::ListSessionsResponse response;
  request.set_page_size(kMaxSessionPage + 1);
  grpc::ClientContext a, b;
  EXPECT_THAT(sessions_->ListSessions(&a, request, &response).error_message(), HasSubstr("page_size"));
  request.set_page_size(0);
  request.set_page_token("made up");
  grpc::Status status = sessions_->ListSessions(&b, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(FromGrpcStatus(status).GetPayload("type.googleapis.com/google.rpc.BadRequest").has_value());
}

class ExpiryTest : public SessionBoundsTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.run.session_ttl = absl::Milliseconds(1500);
    return config;
  }
};

TEST_F(ExpiryTest, AnUnusedSessionGoesAndARunningTurnHoldsItsOwn) {
  StartRouter();
  v1::Session session;
  ASSERT_TRUE(Create(&session).ok());
  EXPECT_EQ(session.expires_unix_ms(), session.updated_unix_ms() + 1500);
  std::string unused = session.id(), used = Create();
  Say(unused, "one");
  std::atomic<bool> running{false};
  Mutex mu;
  std::optional<FakeAttempt> held;
  workers_.SetScript([&](const FakeAttempt& attempt) {
    MutexLock lock(&mu);
    held = attempt;
    running = true;
  });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader =
      inference_->ChatStream(&context, AskIn(used, "one"));
  ASSERT_TRUE(Eventually([&] { return running.load(); }));
  v1::GetSessionResponse response;
  ASSERT_TRUE(Eventually([&] { return Get(unused, &response).error_code() == grpc::StatusCode::NOT_FOUND; }));
  EXPECT_TRUE(Eventually([&] { return workers_.forgotten().size() == 1; }));
  absl::SleepFor(absl::Milliseconds(1500));  // more than its time, too, were it idle
  ASSERT_TRUE(Get(used, &response).ok());
  {
    MutexLock lock(&mu);
    held->Serve(Reply("late"));
  }
  v1::ChatEvent event;
  while (reader->Read(&event)) continue;
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(Get(used, &response).ok());
  EXPECT_THAT(response.turns(), SizeIs(1));
  EXPECT_TRUE(Eventually([&] { return Get(used, &response).error_code() == grpc::StatusCode::NOT_FOUND; }));
}

}  // namespace
}  // namespace sluice
