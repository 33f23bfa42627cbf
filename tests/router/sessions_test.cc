// Conversations: exact ids, commits, forks, stale parents, a restart.
#include <gmock/gmock.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "common/session/sqlite_store.h"
#include "tests/router/router_fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

class SessionsTest : public RouterTest {
 protected:
  std::string Create() {
    grpc::ClientContext context;
    v1::Session session;
    EXPECT_TRUE(sessions_->CreateSession(&context, v1::CreateSessionRequest(), &session).ok());
    return session.id();
  }
  v1::GetSessionResponse Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id(id);
    v1::GetSessionResponse response;
    grpc::Status status = sessions_->GetSession(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::vector<int32_t> PromptOf(size_t attempt) {
    auto ids = workers_.attempts().at(attempt).prefill_request.prompt_ids();
    return {ids.begin(), ids.end()};
  }
};

TEST_F(SessionsTest, MetadataIsBounded) {
  StartRouter();
  auto create = [&](const v1::CreateSessionRequest& request) {
    grpc::ClientContext context;
    v1::Session session;
    return sessions_->CreateSession(&context, request, &session);
  };
  v1::CreateSessionRequest request;
  (*request.mutable_metadata())["k"] = std::string(4095, 'v');
  EXPECT_TRUE(create(request).ok());
  (*request.mutable_metadata())["k"] = std::string(4096, 'v');
  EXPECT_EQ(create(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_metadata();
  for (int i = 0; i < 17; ++i) (*request.mutable_metadata())[std::to_string(i)] = "v";
  EXPECT_EQ(create(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionsTest, TheSecondPromptIsTheFirstPlusTheReplyPlusTheNewText) {
  StartRouter();
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "hi")).status.ok());
  ASSERT_TRUE(Stream(AskIn(id, "and?")).status.ok());
  std::vector<int32_t> expected = PromptOf(0);
  for (int32_t token : Reply("hello there", false)) expected.push_back(token);
  std::vector<TextSegment> suffix = {{"<|im_end|>\n<|im_start|>user\n", false},
                                     {"and?", true},
                                     {"<|im_end|>\n<|im_start|>assistant\n", false}};
  std::vector<int32_t> suffix_ids = *model_.tokenizer->EncodeSegments(suffix);
  expected.insert(expected.end(), suffix_ids.begin(), suffix_ids.end());
  EXPECT_EQ(PromptOf(1), expected);
  EXPECT_EQ(workers_.attempts()[1].prefill_request.turn_tokens(), static_cast<int>(suffix_ids.size()));
  EXPECT_EQ(workers_.attempts()[1].prefill_request.session_id(), id);
  EXPECT_EQ(workers_.attempts()[1].prefill_request.gates().method(), "sluice-mt");

  v1::GetSessionResponse session = Get(id);
  ASSERT_EQ(session.turns_size(), 2);
  EXPECT_EQ(session.turns(0).reply(), "hello there");
  EXPECT_EQ(session.turns(1).messages(0).content(), "and?");
  EXPECT_EQ(session.turns(1).parent_turn_id(), session.turns(0).id());
  EXPECT_EQ(session.session().head_turn_id(), session.turns(1).id());
}

TEST_F(SessionsTest, ARetokenisedReplyWouldDifferAndIsNotUsed) {
  StartRouter();
  std::string id = Create();
  // The same text in other tokens than the tokenizer's own.
  std::vector<int32_t> odd;
  for (char c : std::string("hello")) odd.push_back((*model_.tokenizer->Encode(std::string(1, c)))[0]);
  ASSERT_NE(odd, Reply("hello", false));
  workers_.SetScript([odd](const FakeAttempt& attempt) {
    std::vector<int32_t> reply = odd;
    reply.push_back(4095);
    attempt.Serve(reply);
  });
  ASSERT_TRUE(Stream(AskIn(id, "hi")).status.ok());
  ASSERT_TRUE(Stream(AskIn(id, "more")).status.ok());
  std::vector<int32_t> first = PromptOf(0), second = PromptOf(1);
  first.insert(first.end(), odd.begin(), odd.end());
  ASSERT_GT(second.size(), first.size());
  second.resize(first.size());
  EXPECT_EQ(second, first);
}

TEST_F(SessionsTest, TheHistorysHomeIsThePrefillThatComputedIt) {
  StartRouter();
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "hi")).status.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Stream(AskIn(id, "more")).status.ok());
  for (const FakeAttempt& attempt : workers_.attempts()) {
    EXPECT_EQ(attempt.prefill_name, workers_.attempts()[0].prefill_name);
  }
}

TEST_F(SessionsTest, AFailedTurnLeavesTheSessionAtItsParent) {
  StartRouter();
  std::string id = Create();
  workers_.SetScript([this](const FakeAttempt& attempt) {
    attempt.FirstToken(Reply("x")[0]);
    attempt.Receiving();
    attempt.HandedOff();
    attempt.decode->Finish(absl::InvalidArgumentError("no"));
  });
  EXPECT_FALSE(Stream(AskIn(id, "hi")).status.ok());
  EXPECT_EQ(Get(id).turns_size(), 0);
  workers_.SetScript([this](const FakeAttempt& attempt) { attempt.Serve(Reply("fine")); });
  EXPECT_TRUE(Stream(AskIn(id, "hi")).status.ok());
}

TEST_F(SessionsTest, AStaleParentIsAborted) {
  StartRouter();
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "one")).status.ok());
  std::string first = Get(id).session().head_turn_id();
  ASSERT_TRUE(Stream(AskIn(id, "two")).status.ok());
  v1::ChatRequest request = AskIn(id, "from the first");
  request.mutable_session_turn()->set_parent_turn_id(first);
  SeenReply reply = Stream(request);
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(reply.status)), "STALE_PARENT");
  EXPECT_EQ(Get(id).turns_size(), 2);
}

TEST_F(SessionsTest, OneTurnAtATime) {
  StartRouter();
  std::string id = Create();
  std::atomic<bool> running{false};
  workers_.SetScript([&](const FakeAttempt& attempt) { running = true; });
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader =
      inference_->ChatStream(&context, AskIn(id, "first"));
  while (!running) absl::SleepFor(absl::Milliseconds(2));
  SeenReply second = Stream(AskIn(id, "second"));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(second.status)), "TURN_IN_PROGRESS");
  context.TryCancel();
  reader->Finish();
  while (router_->requests_in_flight() > 0) absl::SleepFor(absl::Milliseconds(2));
  workers_.SetScript([this](const FakeAttempt& attempt) { attempt.Serve(Reply("free again")); });
  EXPECT_TRUE(Stream(AskIn(id, "third")).status.ok());
}

TEST_F(SessionsTest, AForkGoesItsOwnWay) {
  StartRouter();
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "one")).status.ok());
  grpc::ClientContext context;
  v1::ForkSessionRequest request;
  request.set_session_id(id);
  v1::Session fork;
  ASSERT_TRUE(sessions_->ForkSession(&context, request, &fork).ok());
  EXPECT_NE(fork.id(), id);
  EXPECT_EQ(fork.turns(), 1);
  ASSERT_TRUE(Stream(AskIn(fork.id(), "two, forked")).status.ok());
  EXPECT_EQ(Get(id).turns_size(), 1);
  EXPECT_EQ(Get(fork.id()).turns_size(), 2);
  std::vector<int32_t> first = PromptOf(0), forked = PromptOf(1);
  forked.resize(first.size());
  EXPECT_EQ(forked, first);
}

TEST_F(SessionsTest, AnUnknownSessionIsNotFound) {
  StartRouter();
  EXPECT_EQ(Stream(AskIn("0123", "hi")).status.error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  request.set_session_id("0123");
  v1::DeleteSessionResponse response;
  EXPECT_EQ(sessions_->DeleteSession(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SessionsTest, ARestartLosesNothing) {
  TempDir dir;
  StartRouter(*OpenSqliteStore(dir.path() + "/s.db", {}));
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "one")).status.ok());
  router_->Stop(absl::Seconds(5));
  router_.reset();
  workers_.Kill("p1"), workers_.Kill("p2"), workers_.Kill("d1"), workers_.Kill("d2");

  StartRouter(*OpenSqliteStore(dir.path() + "/s.db", {}), {"p3", "d3"});
  EXPECT_EQ(Get(id).turns_size(), 1);
  ASSERT_TRUE(Stream(AskIn(id, "two")).status.ok());
  std::vector<int32_t> history = PromptOf(0), second = PromptOf(1);
  for (int32_t token : Reply("hello there", false)) history.push_back(token);
  second.resize(history.size());
  EXPECT_EQ(second, history);
}

TEST_F(SessionsTest, AnEvictingSessionRemembersItsGatesAndNamesItsParent) {
  StartRouter();
  std::string id = Create();
  v1::ChatRequest request = AskIn(id, "one");
  request.mutable_compression()->set_preset("rocketkv");
  request.mutable_compression()->set_min_prompt_tokens(0);
  request.mutable_compression()->set_budget_tokens(64);
  request.mutable_stopping()->set_max_tokens(32);
  ASSERT_TRUE(Stream(request).status.ok());
  request.mutable_session_turn()->mutable_new_messages(0)->set_content("two");
  ASSERT_TRUE(Stream(request).status.ok());
  std::vector<FakeAttempt> attempts = workers_.attempts();
  EXPECT_EQ(attempts[0].prefill_request.parent_turn_id(), "");
  EXPECT_EQ(attempts[1].prefill_request.parent_turn_id(), Get(id).turns(0).id());
  EXPECT_EQ(attempts[1].prefill_request.gates().retention_budget(),
            attempts[0].prefill_request.gates().retention_budget());
  EXPECT_EQ(attempts[1].prefill_request.gates().selection_tokens(),
            attempts[0].prefill_request.gates().selection_tokens());
}

TEST_F(SessionsTest, APresetOfOneTurnIsNotTheSessions) {
  StartRouter();
  std::string id = Create();
  ASSERT_TRUE(Stream(AskIn(id, "one")).status.ok());
  v1::ChatRequest request = AskIn(id, "two");
  request.mutable_compression()->set_preset("rocketkv");
  ASSERT_TRUE(Stream(request).status.ok());
  ASSERT_TRUE(Stream(AskIn(id, "three")).status.ok());
  std::vector<std::string> methods;
  for (const FakeAttempt& attempt : workers_.attempts()) {
    methods.push_back(attempt.prefill_request.gates().method());
  }
  EXPECT_THAT(methods, testing::ElementsAre("sluice-mt", "rocketkv", "sluice-mt"));
}

TEST_F(SessionsTest, ListPagesThroughAll) {
  StartRouter(nullptr, {});
  std::set<std::string> created = {Create(), Create(), Create()};
  std::set<std::string> listed;
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  do {
    grpc::ClientContext context;
    v1::ListSessionsResponse response;
    ASSERT_TRUE(sessions_->ListSessions(&context, request, &response).ok());
    for (const v1::Session& session : response.sessions()) listed.insert(session.id());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, created);
}

}  // namespace
}  // namespace sluice
