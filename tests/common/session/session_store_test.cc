// The conformance suite: what every session store does, over each of them.
#include "common/session/session_store.h"

#include <atomic>
#include <limits>
#include <memory>
#include <set>
#include <thread>

#include "common/base/random_id.h"
#include "common/session/session_rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/session/store_kinds.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kLimit = 5;

class SessionStoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<SessionStore>> made =
        GetParam().make(dir_, {.max_sessions_per_owner = kLimit});
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_TRUE(made.ok()) << made.status();
    store_ = *std::move(made);
  }

  Session NewSessionAt(int64_t now, const std::string& owner = "ada") {
    absl::StatusOr<Session> session = store_->Create({owner, "needle-14m", {}, now});
    EXPECT_TRUE(session.ok()) << session.status();
    return *session;
  }

  // Commits one turn on the session's head; returns its id.
  std::string Commit(const std::string& session_id, const std::string& parent,
                     const std::string& reply = "r") {
    Turn turn;
    turn.id = RandomId128();
    turn.reply = reply;
    turn.created_unix_ms = ++now_;
    absl::Status status = store_->CommitTurn(session_id, parent, turn, "");
    EXPECT_TRUE(status.ok()) << status;
    return turn.id;
  }

  std::vector<std::string> PathIds(const std::string& session_id, const std::string& turn_id = "") {
    absl::StatusOr<std::vector<Turn>> path = store_->Path(session_id, turn_id);
    EXPECT_TRUE(path.ok()) << path.status();
    std::vector<std::string> ids;
    for (const Turn& turn : *path) ids.push_back(turn.id);
    return ids;
  }

  absl::StatusCode PathCode(const std::string& session_id, const std::string& turn_id = "") {
    return store_->Path(session_id, turn_id).status().code();
  }

  const ScratchDir dir_;
  std::unique_ptr<SessionStore> store_;
  int64_t now_ = 1000;
};

INSTANTIATE_TEST_SUITE_P(Stores, SessionStoreTest, ::testing::ValuesIn(StoreKinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SessionStoreTest, GetReturnsWhatCreateMade) {
  absl::StatusOr<Session> made = store_->Create({"ada", "needle-14m", {{"app", "notes"}, {"", "\0x"}}, 17});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->id, ::testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(made->owner, "ada");
  EXPECT_EQ(made->model, "needle-14m");
  EXPECT_EQ(made->created_unix_ms, 17);
  EXPECT_EQ(made->updated_unix_ms, 17);
  EXPECT_EQ(made->head_turn_id, "");
  EXPECT_EQ(made->home, std::nullopt);
  EXPECT_THAT(made->metadata, SizeIs(2));
  EXPECT_EQ(*store_->Get("ada", made->id), *made);
}

TEST_P(SessionStoreTest, AnotherOwnersSessionIsNotFound) {
  Session session = NewSessionAt(1);
  std::string turn = Commit(session.id, "");
  absl::Status foreign = store_->Get("bob", session.id).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Delete("bob", session.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Truncate("bob", session.id, turn, 2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Fork("bob", session.id, turn, 2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store_->List("bob", "", 10)->sessions, IsEmpty());
  EXPECT_TRUE(store_->Get("ada", session.id).ok());
  // Nobody can tell it from a session that does not exist.
  ASSERT_TRUE(store_->Delete("ada", session.id).ok());
  EXPECT_EQ(store_->Get("bob", session.id).status(), foreign);
}

TEST_P(SessionStoreTest, UnknownSessionIsNotFoundEverywhere) {
  std::string id = RandomId128();
  Turn turn;
  turn.id = RandomId128();
  EXPECT_EQ(store_->Get("ada", id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Delete("ada", id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Truncate("ada", id, turn.id, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*store_->DeleteIdle(id, 1000), std::nullopt);
  EXPECT_EQ(store_->Fork("ada", id, "", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->CommitTurn(id, "", turn, "").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(PathCode(id), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->SetHome(id, std::nullopt, SessionHome{"w", "i"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_P(SessionStoreTest, CommittedTurnComesBackWhole) {
  Session session = NewSessionAt(1);
  Turn first;
  first.id = RandomId128();
  first.messages = {{"system", "be brief"}, {"user", std::string("nul\0inside, \xc3\xa9", 14)}};
  first.reply = "";
  first.prompt_ids = {
      0, 1, -1, 255, 256, 65536, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
  first.emitted_ids = {};
  first.finish_reason = "STOP_EOS";
  first.created_unix_ms = 40;
  ASSERT_TRUE(store_->CommitTurn(session.id, "", first, R"({"budget":512})").ok());
  Turn second = first;
  second.id = RandomId128();
  second.messages = {{"user", "and?"}};
  second.emitted_ids = {7, 8};
  second.created_unix_ms = 50;
  ASSERT_TRUE(store_->CommitTurn(session.id, first.id, second, "").ok());

  first.session_id = second.session_id = session.id;
  second.parent_turn_id = first.id;
  second.index = 1;
  EXPECT_THAT(*store_->Path(session.id, ""), ElementsAre(first, second));
  EXPECT_THAT(*store_->Path(session.id, first.id), ElementsAre(first));
  Session now = *store_->Get("ada", session.id);
  EXPECT_EQ(now.head_turn_id, second.id);
  EXPECT_EQ(now.updated_unix_ms, 50);
  EXPECT_EQ(now.created_unix_ms, 1);
  EXPECT_EQ(now.compression_json, R"({"budget":512})");
}

TEST_P(SessionStoreTest, LongTurnComesBackWhole) {
  Session session = NewSessionAt(1);
  Turn turn;
  turn.id = RandomId128();
  for (int i = 0; i < 131072; ++i) turn.prompt_ids.push_back(i * 7919);
  ASSERT_TRUE(store_->CommitTurn(session.id, "", turn, "").ok());
  EXPECT_EQ(store_->Path(session.id, "")->at(0).prompt_ids, turn.prompt_ids);
}

TEST_P(SessionStoreTest, PromptsComeBackWholeHoweverTheyFollowTheirParents) {
  const std::string session_id = NewSessionAt(1).id;
  const std::vector<std::vector<int32_t>> prompts = {
      {1, 2, 3},           // emits 7, 8
      {1, 2, 3, 7, 8, 4},  // goes on
      {1, 2, 9, 4},        // history written anew
      {1, 2, 9, 4},        // the same without the reply before
      {5},                 // nothing in common
      {},                  // and nothing at all
      {7, 8, 1},
  };
  std::string parent, middle;
  for (const std::vector<int32_t>& prompt : prompts) {
    Turn turn;
    turn.id = RandomId128();
    turn.prompt_ids = prompt;
    turn.emitted_ids = {7, 8};
    ASSERT_TRUE(store_->CommitTurn(session_id, parent, turn, "").ok());
    parent = turn.id;
    if (middle.empty() && prompt.size() == 4) middle = turn.id;
  }
  std::vector<Turn> path = *store_->Path(session_id, "");
  ASSERT_EQ(path.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(path[i].prompt_ids, prompts[i]) << i;
    EXPECT_THAT(path[i].emitted_ids, ElementsAre(7, 8)) << i;
  }
  // A fork in the middle outlives its source.
  Session fork = *store_->Fork("ada", session_id, middle, 2);
  ASSERT_TRUE(store_->Delete("ada", session_id).ok());
  path = *store_->Path(fork.id, "");
  ASSERT_EQ(path.size(), 3u);
  EXPECT_EQ(path[2].prompt_ids, prompts[2]);
}

TEST_P(SessionStoreTest, StaleParentIsAbortedAndChangesNothing) {
  Session session = NewSessionAt(1);
  std::string first = Commit(session.id, "");
  std::string second = Commit(session.id, first);
  Session before = *store_->Get("ada", session.id);
  Turn late;
  late.id = RandomId128();
  for (const std::string& parent : {std::string(), first, RandomId128()}) {
    absl::Status status = store_->CommitTurn(session.id, parent, late, "{}");
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(second));
  }
  EXPECT_EQ(*store_->Get("ada", session.id), before);
  EXPECT_THAT(PathIds(session.id), ElementsAre(first, second));
  // The refused id is still free.
  EXPECT_TRUE(store_->CommitTurn(session.id, second, late, "").ok());
}

TEST_P(SessionStoreTest, TurnIdIsUsedOnceAndIsHex) {
  Session session = NewSessionAt(1);
  std::string first = Commit(session.id, "");
  Turn turn;
  turn.id = first;
  EXPECT_EQ(store_->CommitTurn(session.id, first, turn, "").code(), absl::StatusCode::kAlreadyExists);
  for (const char* id :
       {"", "short", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdefg"}) {
    turn.id = id;
    EXPECT_EQ(store_->CommitTurn(session.id, first, turn, "").code(), absl::StatusCode::kInvalidArgument)
        << id;
  }
  EXPECT_THAT(PathIds(session.id), ElementsAre(first));
}

TEST_P(SessionStoreTest, OneOfEightConcurrentCommittersWinsEachRound) {
  Session session = NewSessionAt(1);
  std::string parent;
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> ready = 0, won = 0, aborted = 0;
    std::vector<std::string> ids(8);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      ids[t] = RandomId128();
      threads.emplace_back([&, t] {
        Turn turn;
        turn.id = ids[t];
        ++ready;
        while (ready < 8) std::this_thread::yield();
        absl::Status status = store_->CommitTurn(session.id, parent, turn, "");
        if (status.ok()) ++won;
        if (status.code() == absl::StatusCode::kAborted) ++aborted;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(aborted, 7);
    parent = store_->Get("ada", session.id)->head_turn_id;
    EXPECT_THAT(ids, ::testing::Contains(parent));
    EXPECT_THAT(PathIds(session.id), SizeIs(round + 1));
  }
}

TEST_P(SessionStoreTest, ForkSharesTurnsAndThenPartsWays) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, ""), b = Commit(source.id, a);
  Session at_head = *store_->Fork("ada", source.id, "", 100);
  Session at_a = *store_->Fork("ada", source.id, a, 200);
  EXPECT_NE(at_head.id, source.id);
  EXPECT_EQ(at_a.created_unix_ms, 200);
  EXPECT_EQ(at_a.updated_unix_ms, 200);
  EXPECT_EQ(*store_->Get("ada", at_a.id), at_a);
  EXPECT_EQ(store_->Path(at_head.id, "")->back(), store_->Path(source.id, "")->back());  // the same turn

  std::string c = Commit(source.id, b), d = Commit(at_head.id, b), e = Commit(at_a.id, a);
  EXPECT_THAT(PathIds(source.id), ElementsAre(a, b, c));
  EXPECT_THAT(PathIds(at_head.id), ElementsAre(a, b, d));
  EXPECT_THAT(PathIds(at_a.id), ElementsAre(a, e));
  EXPECT_EQ(store_->Path(at_a.id, "")->back().index, 1);
}

TEST_P(SessionStoreTest, ForkTakesHomeMetadataAndCompression) {
  Session source = *store_->Create({"ada", "m", {{"k", "v"}}, 1});
  Turn turn;
  turn.id = RandomId128();
  ASSERT_TRUE(store_->CommitTurn(source.id, "", turn, "{1}").ok());
  ASSERT_TRUE(*store_->SetHome(source.id, std::nullopt, SessionHome{"p0", "i0"}));
  Session fork = *store_->Get("ada", store_->Fork("ada", source.id, "", 5)->id);
  EXPECT_EQ(fork.model, "m");
  EXPECT_EQ(fork.metadata.at("k"), "v");
  EXPECT_EQ(fork.compression_json, "{1}");
  EXPECT_EQ(fork.home, (SessionHome{"p0", "i0"}));
}

TEST_P(SessionStoreTest, ForkOfAnEmptySessionIsEmpty) {
  Session source = NewSessionAt(1);
  absl::StatusOr<Session> fork = store_->Fork("ada", source.id, "", 2);
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_THAT(PathIds(fork->id), IsEmpty());
}

TEST_P(SessionStoreTest, TurnsOffThePathAreNotFound) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, "");
  Session fork = *store_->Fork("ada", source.id, a, 2);
  std::string b = Commit(source.id, a);
  EXPECT_EQ(store_->Fork("ada", fork.id, b, 3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(PathCode(fork.id, b), absl::StatusCode::kNotFound);
  EXPECT_EQ(PathCode(fork.id, RandomId128()), absl::StatusCode::kNotFound);
  Session empty = NewSessionAt(4);
  EXPECT_EQ(PathCode(empty.id, a), absl::StatusCode::kNotFound);
}

TEST_P(SessionStoreTest, DeletingTheSourceLeavesTheForkWhole) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, ""), b = Commit(source.id, a), c = Commit(source.id, b);
  Session fork = *store_->Fork("ada", source.id, a, 2);
  std::string d = Commit(fork.id, a);
  ASSERT_TRUE(store_->Delete("ada", source.id).ok());
  EXPECT_EQ(store_->Get("ada", source.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(PathIds(fork.id), ElementsAre(a, d));

  // b and c went with the source: their ids are free again, a's is not.
  Turn again;
  again.id = a;
  EXPECT_EQ(store_->CommitTurn(fork.id, d, again, "").code(), absl::StatusCode::kAlreadyExists);
  again.id = c;
  EXPECT_TRUE(store_->CommitTurn(fork.id, d, again, "").ok());
  again.id = b;
  EXPECT_TRUE(store_->CommitTurn(fork.id, c, again, "").ok());
}

TEST_P(SessionStoreTest, DeletingTheForkLeavesTheSourceWhole) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, "");
  Session fork = *store_->Fork("ada", source.id, "", 2);
  Commit(fork.id, a);
  ASSERT_TRUE(store_->Delete("ada", fork.id).ok());
  EXPECT_THAT(PathIds(source.id), ElementsAre(a));
  // The last holder takes the turn along.
  ASSERT_TRUE(store_->Delete("ada", source.id).ok());
  Session fresh = NewSessionAt(9);
  Turn again;
  again.id = a;
  EXPECT_TRUE(store_->CommitTurn(fresh.id, "", again, "").ok());
}

TEST_P(SessionStoreTest, ListPagesNewestFirst) {
  std::vector<std::string> newest_first;
  for (int64_t now : {10, 30, 20, 30, 0}) newest_first.push_back(NewSessionAt(now).id);
  NewSessionAt(25, "bob");
  std::vector<Session> seen;
  std::string token;
  int pages = 0;
  do {
    absl::StatusOr<SessionPage> page = store_->List("ada", token, 2);
    ASSERT_TRUE(page.ok()) << page.status();
    seen.insert(seen.end(), page->sessions.begin(), page->sessions.end());
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  std::vector<int64_t> times;
  std::set<std::string> ids;
  for (const Session& session : seen) {
    times.push_back(session.created_unix_ms);
    ids.insert(session.id);
    EXPECT_EQ(*store_->Get("ada", session.id), session);
  }
  EXPECT_THAT(times, ElementsAre(30, 30, 20, 10, 0));
  EXPECT_EQ(ids, std::set<std::string>(newest_first.begin(), newest_first.end()));
  EXPECT_EQ(store_->List("ada", "", kLimit)->next_page_token, "");  // an exactly full page is the last
}

TEST_P(SessionStoreTest, PagingGoesOnWhenItsLastSessionIsDeleted) {
  Session old = NewSessionAt(1), middle = NewSessionAt(2), young = NewSessionAt(3);
  SessionPage page = *store_->List("ada", "", 2);
  ASSERT_THAT(page.sessions, ElementsAre(young, middle));
  ASSERT_TRUE(store_->Delete("ada", middle.id).ok());
  EXPECT_THAT(store_->List("ada", page.next_page_token, 2)->sessions, ElementsAre(old));
}

TEST_P(SessionStoreTest, BadPageArgumentsSayWhich) {
  for (const char* token : {"x", "zz", "00000000000000010000"}) {
    absl::Status status = store_->List("ada", token, 5).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("page_token"));
  }
  for (int size : {0, -1, kMaxSessionPage + 1}) {
    absl::Status status = store_->List("ada", "", size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("page_size"));
  }
}

TEST_P(SessionStoreTest, QuotaCountsForksAndIsPerOwner) {
  Session first = NewSessionAt(1);
  for (int i = 1; i < kLimit - 1; ++i) NewSessionAt(i);
  ASSERT_TRUE(store_->Fork("ada", first.id, "", 9).ok());
  absl::Status full = store_->Create({"ada", "m", {}, 10}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("5"));
  EXPECT_EQ(QuotaSubjectOf(full), "sessions of owner 'ada'");
  EXPECT_EQ(store_->Fork("ada", first.id, "", 11).status().code(), absl::StatusCode::kResourceExhausted);
  NewSessionAt(12, "bob");
  ASSERT_TRUE(store_->Delete("ada", first.id).ok());
  NewSessionAt(13);
}

TEST_P(SessionStoreTest, TooMuchMetadataIsRefused) {
  NewSession fresh{"ada", "m", {}, 1};
  for (int i = 0; i < kMaxSessionMetadata; ++i) fresh.metadata[std::to_string(i)] = "v";
  EXPECT_TRUE(store_->Create(fresh).ok());
  fresh.metadata["one more"] = "v";
  EXPECT_EQ(store_->Create(fresh).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(SessionStoreTest, SetHomeComparesAndSets) {
  Session session = NewSessionAt(1);
  SessionHome old{"p0", "a"}, restarted{"p0", "b"};
  EXPECT_FALSE(*store_->SetHome(session.id, old, restarted));
  EXPECT_TRUE(*store_->SetHome(session.id, std::nullopt, old));
  EXPECT_FALSE(*store_->SetHome(session.id, std::nullopt, restarted));
  EXPECT_FALSE(*store_->SetHome(session.id, restarted, restarted));
  EXPECT_EQ(store_->Get("ada", session.id)->home, old);
  EXPECT_TRUE(*store_->SetHome(session.id, old, restarted));
  EXPECT_EQ(store_->Get("ada", session.id)->home, restarted);
  EXPECT_TRUE(*store_->SetHome(session.id, restarted, std::nullopt));
  EXPECT_EQ(store_->Get("ada", session.id)->home, std::nullopt);
}

TEST_P(SessionStoreTest, SessionsCountTheirTurns) {
  Session session = NewSessionAt(1);
  EXPECT_EQ(session.turns, 0);
  std::string a = Commit(session.id, ""), b = Commit(session.id, a);
  EXPECT_EQ(store_->Get("ada", session.id)->turns, 2);
  EXPECT_EQ(store_->List("ada", "", 1)->sessions[0].turns, 2);
  EXPECT_EQ(store_->Fork("ada", session.id, a, 2)->turns, 1);
  EXPECT_EQ(store_->Fork("ada", session.id, "", 2)->turns, 2);
}

TEST_P(SessionStoreTest, DeleteNamesTheTurnsThatNobodyHolds) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, ""), b = Commit(source.id, a), c = Commit(source.id, b);
  Session fork = *store_->Fork("ada", source.id, a, 2);
  EXPECT_THAT(*store_->Delete("ada", source.id), ElementsAre(b, c));
  EXPECT_THAT(*store_->Delete("ada", fork.id), ElementsAre(a));
  EXPECT_THAT(*store_->Delete("ada", NewSessionAt(3).id), IsEmpty());
}

TEST_P(SessionStoreTest, TruncateDropsTheTurnsAfterOne) {
  Session session = NewSessionAt(1);
  std::string a = Commit(session.id, ""), b = Commit(session.id, a), c = Commit(session.id, b);
  Truncated cut = *store_->Truncate("ada", session.id, a, 77);
  EXPECT_THAT(cut.dropped_turn_ids, ElementsAre(b, c));
  EXPECT_EQ(cut.session.head_turn_id, a);
  EXPECT_EQ(cut.session.turns, 1);
  EXPECT_EQ(cut.session.updated_unix_ms, 77);
  EXPECT_EQ(*store_->Get("ada", session.id), cut.session);
  EXPECT_THAT(PathIds(session.id), ElementsAre(a));
  EXPECT_EQ(PathCode(session.id, b), absl::StatusCode::kNotFound);
  // It goes on from there, and a turn that went is a stale parent.
  Turn late;
  late.id = RandomId128();
  EXPECT_EQ(store_->CommitTurn(session.id, c, late, "").code(), absl::StatusCode::kAborted);
  std::string d = Commit(session.id, a);
  EXPECT_THAT(PathIds(session.id), ElementsAre(a, d));
}

TEST_P(SessionStoreTest, TruncateAtTheHeadDropsNothingAndOffThePathIsNotFound) {
  Session session = NewSessionAt(1);
  std::string a = Commit(session.id, ""), b = Commit(session.id, a);
  EXPECT_THAT(store_->Truncate("ada", session.id, b, 5)->dropped_turn_ids, IsEmpty());
  Session fork = *store_->Fork("ada", session.id, a, 2);
  Session before = *store_->Get("ada", fork.id);
  for (const std::string& turn : {b, RandomId128(), std::string()}) {
    EXPECT_EQ(store_->Truncate("ada", fork.id, turn, 5).status().code(), absl::StatusCode::kNotFound) << turn;
  }
  EXPECT_EQ(*store_->Get("ada", fork.id), before);
}

TEST_P(SessionStoreTest, TruncateLeavesWhatForksHold) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, ""), b = Commit(source.id, a), c = Commit(source.id, b);
  Session fork = *store_->Fork("ada", source.id, b, 2);
  EXPECT_THAT(store_->Truncate("ada", source.id, a, 3)->dropped_turn_ids, ElementsAre(c));
  EXPECT_THAT(PathIds(fork.id), ElementsAre(a, b));
  EXPECT_THAT(*store_->Delete("ada", fork.id), ElementsAre(b));
  EXPECT_THAT(PathIds(source.id), ElementsAre(a));
}

TEST_P(SessionStoreTest, IdleSessionsComeLongestIdleFirst) {
  Session old = NewSessionAt(10), used = NewSessionAt(5), young = NewSessionAt(30, "bob");
  now_ = 19;
  Commit(used.id, "");  // at 20
  std::vector<std::string> ids;
  const std::vector<Session> idle = *store_->Idle(30, 10);
  for (const Session& session : idle) ids.push_back(session.id);
  EXPECT_THAT(ids, ElementsAre(old.id, used.id));
  EXPECT_THAT(*store_->Idle(31, 10), SizeIs(3));
  ASSERT_THAT(*store_->Idle(31, 1), SizeIs(1));
  EXPECT_EQ(store_->Idle(31, 1)->at(0), *store_->Get("ada", old.id));
  EXPECT_THAT(*store_->Idle(10, 10), IsEmpty());
}

TEST_P(SessionStoreTest, DeleteIdleSparesWhatWasUsedSince) {
  Session session = NewSessionAt(10);
  now_ = 19;
  std::string turn = Commit(session.id, "");
  EXPECT_EQ(*store_->DeleteIdle(session.id, 20), std::nullopt);
  EXPECT_TRUE(store_->Get("ada", session.id).ok());
  EXPECT_THAT(**store_->DeleteIdle(session.id, 21), ElementsAre(turn));
  EXPECT_EQ(store_->Get("ada", session.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*store_->DeleteIdle(session.id, 21), std::nullopt);
}

// Text of 3 + 4 + 5 bytes; the prompt is what came before and `fresh` more ids.
Turn TurnOf(const Turn* before, int fresh) {
  Turn turn;
  turn.id = RandomId128();
  turn.messages = {{"usr", "text"}};
  turn.reply = "reply";
  if (before != nullptr) {
    turn.prompt_ids = before->prompt_ids;
    turn.prompt_ids.insert(turn.prompt_ids.end(), before->emitted_ids.begin(), before->emitted_ids.end());
  }
  for (int i = 0; i < fresh; ++i) turn.prompt_ids.push_back(i);
  turn.emitted_ids = {1, 2};
  return turn;
}
constexpr int64_t kTurnText = 12;

TEST_P(SessionStoreTest, TotalsCountEachTurnOnceOverAllOwners) {
  EXPECT_EQ(*store_->Totals(), (SessionTotals{0, 0}));
  Session ada = NewSessionAt(1), bob = NewSessionAt(2, "bob");
  Turn first = TurnOf(nullptr, 10), second = TurnOf(&first, 3), other = TurnOf(nullptr, 1);
  ASSERT_TRUE(store_->CommitTurn(ada.id, "", first, "").ok());
  ASSERT_TRUE(store_->CommitTurn(ada.id, first.id, second, "").ok());
  ASSERT_TRUE(store_->CommitTurn(bob.id, "", other, "").ok());
  const int64_t of_first = kTurnText + 4 * 12, of_second = kTurnText + 4 * 5, of_other = kTurnText + 4 * 3;
  EXPECT_EQ(*store_->Totals(), (SessionTotals{2, of_first + of_second + of_other}));
  Session fork = *store_->Fork("ada", ada.id, "", 3);  // takes nothing
  EXPECT_EQ(*store_->Totals(), (SessionTotals{3, of_first + of_second + of_other}));
  ASSERT_TRUE(store_->Truncate("ada", ada.id, first.id, 4).ok());  // the fork still holds the second
  EXPECT_EQ(*store_->Totals(), (SessionTotals{3, of_first + of_second + of_other}));
  ASSERT_TRUE(store_->Delete("ada", fork.id).ok());
  EXPECT_EQ(*store_->Totals(), (SessionTotals{2, of_first + of_other}));
  ASSERT_TRUE(store_->Delete("bob", bob.id).ok());
  ASSERT_TRUE(store_->DeleteIdle(ada.id, 1000000).ok());
  EXPECT_EQ(*store_->Totals(), (SessionTotals{0, 0}));
}

TEST_P(SessionStoreTest, RoomIsPerOwnerAndComesBack) {
  const int64_t of_turn = kTurnText + 4 * 4;
  const ScratchDir dir;
  std::unique_ptr<SessionStore> store = *GetParam().make(dir, {.max_bytes_per_owner = 2 * of_turn});
  Session session = *store->Create({"ada", "m", {}, 1});
  Turn first = TurnOf(nullptr, 2), second = TurnOf(&first, 2), third = TurnOf(&second, 2);
  ASSERT_TRUE(store->CommitTurn(session.id, "", first, "").ok());
  EXPECT_TRUE(store->CheckRoom("ada").ok());
  ASSERT_TRUE(store->CommitTurn(session.id, first.id, second, "").ok());
  absl::Status full = store->CheckRoom("ada");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr(std::to_string(2 * of_turn)));
  EXPECT_EQ(QuotaSubjectOf(full), "session bytes of owner 'ada'");
  EXPECT_TRUE(store->CheckRoom("bob").ok());
  // What was computed meanwhile is kept.
  ASSERT_TRUE(store->CommitTurn(session.id, second.id, third, "").ok());
  ASSERT_TRUE(store->Truncate("ada", session.id, first.id, 9).ok());
  EXPECT_TRUE(store->CheckRoom("ada").ok());
}

TEST_P(SessionStoreTest, ConcurrentForksCommitsAndDeletesLeaveNothingBehind) {
  Session source = NewSessionAt(1);
  std::string a = Commit(source.id, ""), b = Commit(source.id, a);
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        absl::StatusOr<Session> fork = store_->Fork("ada", source.id, i % 2 == 0 ? a : b, i);
        Turn turn;
        turn.id = RandomId128();
        if (!fork.ok() || !store_->CommitTurn(fork->id, fork->head_turn_id, turn, "").ok() ||
            store_->Path(fork->id, "")->size() != (i % 2 == 0 ? 2u : 3u) ||
            !store_->Delete("ada", fork->id).ok()) {
          ++failures;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(*store_->Totals(), (SessionTotals{1, 2}));
  EXPECT_THAT(PathIds(source.id), ElementsAre(a, b));
}

}  // namespace
}  // namespace sluice
