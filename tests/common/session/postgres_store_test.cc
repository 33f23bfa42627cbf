// What only a store behind a network does: it outlives its server's restarts, commits once, and is shared.
// The conformance suite runs over it, too (session_store_test.cc).
#include "common/session/postgres_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/random_id.h"
#include "tests/common/session/store_kinds.h"
#include "tests/support/free_port.h"
#include "tests/support/patience.h"
#include "tests/support/postgres_server.h"

namespace sluice {

namespace {

// One server for the whole program.
absl::StatusOr<std::unique_ptr<PostgresServer>>& Server() {
  static absl::StatusOr<std::unique_ptr<PostgresServer>> server = PostgresServer::Start();
  return server;
}

}  // namespace

std::vector<StoreKind> StoreKinds() {
  return {
      {"Postgres",
       [](const ScratchDir&, const SessionLimits& limits) -> absl::StatusOr<std::unique_ptr<SessionStore>> {
         if (!Server().ok()) return Server().status();
         return OpenPostgresStore({(*Server())->FreshUri()}, limits);
       }}};
}

namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;

// Forwards connections to a server, and cuts the client's end of the one in which a COMMIT is answered, once.
class CuttingProxy {
 public:
  explicit CuttingProxy(int to) : to_(to) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = At(0);
    socklen_t size = sizeof(address);
    SLUICE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                 listen(listener_, 8) == 0);
    SLUICE_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Accept(); });
  }
  ~CuttingProxy() {
    stop_ = true;
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  int port() const { return port_; }
  void CutNextCommit() { armed_ = true; }
  int cuts() const { return cuts_; }

 private:
  static sockaddr_in At(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  void Accept() {
    pollfd ready{listener_, POLLIN, 0};
    while (!stop_) {
      if (poll(&ready, 1, 20) > 0)
        threads_.emplace_back([this, fd = accept(listener_, nullptr, nullptr)] { Serve(fd); });
    }
  }
  void Serve(int client) {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = At(to_);
    bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    bool committing = false;
    pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    std::string bytes(1 << 16, 0);
    while (open && !stop_) {
      poll(ends, 2, 20);
      for (int from : {0, 1}) {
        if ((ends[from].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        const ssize_t n = read(ends[from].fd, bytes.data(), bytes.size());
        if (n <= 0) {
          open = false;
          continue;
        }
        const absl::string_view chunk(bytes.data(), static_cast<size_t>(n));
        if (from == 0 && absl::StrContains(chunk, "COMMIT") && armed_.exchange(false)) committing = true;
        if (from == 1 && committing) {  // the server has done it, its client never hears
          ++cuts_;
          open = false;
          continue;
        }
        for (size_t done = 0; done < chunk.size();) {
          const ssize_t sent = write(ends[1 - from].fd, chunk.data() + done, chunk.size() - done);
          if (sent <= 0) break;
          done += static_cast<size_t>(sent);
        }
      }
    }
    close(client);
    close(server);
  }

  const int to_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false}, armed_{false};
  std::atomic<int> cuts_{0};
  std::thread thread_;
  std::vector<std::thread> threads_;  // the accepting thread's, until it has ended
};

class PostgresStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Server().ok()) GTEST_SKIP() << Server().status().message();
    server_ = Server()->get();
    uri_ = server_->FreshUri();
    store_ = Open();
  }
  std::unique_ptr<SessionStore> Open(absl::Duration timeout = kPatience * absl::Seconds(20)) {
    auto store = OpenPostgresStore({uri_, timeout}, {});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static Turn NewTurn() {
    Turn turn;
    turn.id = RandomId128();
    turn.messages = {{"user", "hi"}};
    turn.prompt_ids = {1, 2, 3};
    turn.emitted_ids = {4};
    return turn;
  }
  static std::vector<std::string> PathIds(SessionStore* store, const std::string& session_id) {
    const std::vector<Turn> path = *store->Path(session_id, "");
    std::vector<std::string> ids;
    for (const Turn& turn : path) ids.push_back(turn.id);
    return ids;
  }

  PostgresServer* server_ = nullptr;
  std::string uri_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(PostgresStoreTest, RestartsLoseNoCommittedTurnAndRepeatNone) {
  constexpr int kWriters = 3;
  std::atomic<bool> over{false};
  std::vector<std::string> sessions, errors(kWriters);
  std::vector<std::vector<std::string>> committed(kWriters);
  for (int i = 0; i < kWriters; ++i) sessions.push_back(store_->Create({"ada", "m", {}, 1})->id);
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, i] {
      std::string head;
      while (!over) {
        const Turn turn = NewTurn();
        const absl::Status status = store_->CommitTurn(sessions[i], head, turn, "");
        if (!status.ok()) {
          errors[i] = status.ToString();
          return;
        }
        head = turn.id;
        committed[i].push_back(head);
      }
    });
  }
  for (int signal : {SIGINT, SIGQUIT, SIGINT, SIGQUIT}) {
    absl::SleepFor(absl::Milliseconds(150));
    server_->Stop(signal);
    ASSERT_TRUE(server_->StartAgain().ok());
  }
  absl::SleepFor(absl::Milliseconds(150));
  over = true;
  for (std::thread& writer : writers) writer.join();
  for (int i = 0; i < kWriters; ++i) {
    EXPECT_EQ(errors[i], "");
    EXPECT_GT(committed[i].size(), 4u);
    EXPECT_THAT(PathIds(store_.get(), sessions[i]), ElementsAreArray(committed[i]));
  }
}

TEST_F(PostgresStoreTest, WhatWasCommittedBeforeTheAnswerWasLostIsNotDoneAgain) {
  const int port = std::stoi(uri_.substr(uri_.find("127.0.0.1:") + 10));
  CuttingProxy proxy(port);
  const std::string direct = absl::StrCat(":", port, "/"), through = absl::StrCat(":", proxy.port(), "/");
  uri_ = absl::StrReplaceAll(uri_, {{direct, through}});
  std::unique_ptr<SessionStore> cut = Open();

  proxy.CutNextCommit();
  const Session session = *cut->Create({"ada", "m", {}, 1});
  ASSERT_EQ(proxy.cuts(), 1);
  EXPECT_EQ(store_->Totals()->sessions, 1);

  const Turn turn = NewTurn();
  proxy.CutNextCommit();
  EXPECT_TRUE(cut->CommitTurn(session.id, "", turn, "{}").ok());
  ASSERT_EQ(proxy.cuts(), 2);
  EXPECT_THAT(PathIds(store_.get(), session.id), ElementsAreArray({turn.id}));
  const int64_t bytes = store_->Totals()->bytes;

  proxy.CutNextCommit();
  const Session fork = *cut->Fork("ada", session.id, "", 2);
  EXPECT_EQ(store_->Totals()->sessions, 2);
  EXPECT_EQ(*store_->Get("ada", fork.id), fork);

  const SessionHome home{"p0", "i0"};
  proxy.CutNextCommit();
  EXPECT_TRUE(*cut->SetHome(session.id, std::nullopt, home));
  EXPECT_EQ(store_->Get("ada", session.id)->home, home);

  proxy.CutNextCommit();
  EXPECT_TRUE(cut->Delete("ada", fork.id).ok());
  ASSERT_EQ(proxy.cuts(), 5);
  EXPECT_EQ(store_->Totals()->sessions, 1);
  EXPECT_EQ(store_->Totals()->bytes, bytes);
}

TEST_F(PostgresStoreTest, TwoStoresOverOneDatabaseKeepItsRules) {
  std::unique_ptr<SessionStore> other = Open();
  for (int round = 0; round < 10; ++round) {
    const Session session = *store_->Create({"ada", "m", {}, 1});
    // One parent, two routers: one turn.
    const Turn left = NewTurn(), right = NewTurn();
    absl::Status of_right;
    std::thread thread([&] { of_right = other->CommitTurn(session.id, "", right, ""); });
    const absl::Status of_left = store_->CommitTurn(session.id, "", left, "");
    thread.join();
    EXPECT_NE(of_left.ok(), of_right.ok());
    EXPECT_TRUE(absl::IsAborted(of_left.ok() ? of_right : of_left));
    EXPECT_EQ(other->Path(session.id, "")->size(), 1u);
    // The last two holders of a turn go at once: it goes with them.
    const Session fork = *other->Fork("ada", session.id, "", 2);
    std::thread deletes([&] { EXPECT_TRUE(other->Delete("ada", fork.id).ok()); });
    EXPECT_TRUE(store_->Delete("ada", session.id).ok());
    deletes.join();
    EXPECT_EQ(*store_->Totals(), (SessionTotals{0, 0}));
  }
}

TEST_F(PostgresStoreTest, AServerThatIsAwayIsUnavailableInTime) {
  std::unique_ptr<SessionStore> hasty = Open(absl::Milliseconds(400));
  server_->Stop(SIGINT);
  const absl::Time began = absl::Now();
  const absl::Status status = hasty->Get("ada", RandomId128()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("PostgreSQL 127.0.0.1:"));
  EXPECT_LT(absl::Now() - began, kPatience * absl::Seconds(5));
  ASSERT_TRUE(server_->StartAgain().ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Get("ada", RandomId128()).status()));
}

TEST_F(PostgresStoreTest, AServerThatIsSilentIsUnavailableInTime) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string uri =
      absl::StrCat("postgresql://ada:secret@127.0.0.1:", ntohs(address.sin_port), "/sessions");
  const absl::Status status = OpenPostgresStore({uri, absl::Milliseconds(300)}, {}).status();
  close(listener);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no answer in time"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
}

TEST_F(PostgresStoreTest, AnAddressThatIsNoneIsRefused) {
  const absl::Status status = OpenPostgresStore({"postgresql://[::1/x"}, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  const absl::Status with_password = OpenPostgresStore({"postgresql://ada:secret@[::1/x"}, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(with_password)) << with_password;
  EXPECT_THAT(std::string(with_password.message()), Not(HasSubstr("secret")));
}

TEST_F(PostgresStoreTest, TextWithAnyCharacterComesBackOrIsRefused) {
  const std::string odd("nul\0tab\t\"quote\\", 15);
  absl::StatusOr<Session> session = store_->Create({"ada", "m", {{odd, odd}}, 1});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(store_->Get("ada", session->id)->metadata.at(odd), odd);
  Turn turn = NewTurn();
  turn.reply = odd;
  ASSERT_TRUE(store_->CommitTurn(session->id, "", turn, "").ok());
  EXPECT_EQ(store_->Path(session->id, "")->at(0).reply, odd);
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Create({odd, "m", {}, 1}).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Get("ada", odd).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Path(session->id, odd).status()));
}

}  // namespace
}  // namespace sluice
