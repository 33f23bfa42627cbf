// What only a store on a disk can get wrong: restarts, crashes, and files that are not as they should be.
#include "common/session/sqlite_store.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>

#include "common/base/random_id.h"
#include "common/session/session_rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/session/scratch_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<SessionStore> OpenOrDie(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SessionStore>> store = OpenSqliteStore(path, {});
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// Turn n of a test session: everything in it follows from n.
Turn NthTurn(int n) {
  Turn turn;
  turn.id = RandomId128();
  turn.messages = {{"user", "question " + std::to_string(n)}};
  turn.reply = "answer " + std::to_string(n);
  turn.prompt_ids.assign(5000, n);
  turn.emitted_ids = {n, n + 1};
  turn.finish_reason = "STOP_EOS";
  turn.created_unix_ms = n;
  return turn;
}

void ExpectNamesFile(const absl::Status& status, absl::StatusCode code, const std::string& path) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

// Runs the body in a process of its own as an ordinary user (root may write anywhere); returns its exit code.
int RunUnprivileged(const std::function<int()>& body) {
  pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int64_t NumberFrom(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  sqlite3_stmt* query = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_prepare_v2(db, sql.c_str(), -1, &query, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  EXPECT_EQ(sqlite3_step(query), SQLITE_ROW);
  int64_t number = sqlite3_column_int64(query, 0);
  sqlite3_finalize(query);
  sqlite3_close(db);
  return number;
}

int64_t CountRows(const std::string& path, const std::string& table) {
  return NumberFrom(path, "SELECT count(*) FROM " + table);
}

std::vector<std::string> ColumnsOf(const std::string& path, const std::string& table) {
  std::vector<std::string> columns;
  sqlite3* db = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  const auto add = [](void* out, int, char** values, char**) {
    static_cast<std::vector<std::string>*>(out)->push_back(values[1]);
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(db, ("PRAGMA table_info(" + table + ")").c_str(), add, &columns, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  return columns;
}

void RunSql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  sqlite3_close(db);
}

TEST(SqliteStoreTest, ReopenedStoreSeesEverything) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  Session session, fork;
  std::vector<Turn> turns;
  {
    auto store = OpenOrDie(path);
    session = *store->Create({"ada", "m", {{"k", "v"}}, 1});
    std::string parent;
    for (int n = 0; n < 3; ++n) {
      Turn turn = NthTurn(n);
      ASSERT_TRUE(store->CommitTurn(session.id, parent, turn, n == 0 ? "{}" : "").ok());
      parent = turn.id;
    }
    ASSERT_TRUE(*store->SetHome(session.id, std::nullopt, SessionHome{"p0", "i"}));
    turns = *store->Path(session.id, "");
    session = *store->Get("ada", session.id);
    fork = *store->Fork("ada", session.id, turns[1].id, 9);
  }
  auto store = OpenOrDie(path);
  EXPECT_EQ(*store->Get("ada", session.id), session);
  EXPECT_EQ(*store->Path(session.id, ""), turns);
  EXPECT_EQ(*store->Get("ada", fork.id), fork);
  EXPECT_EQ(store->List("ada", "", 10)->sessions.size(), 2u);
}

TEST(SqliteStoreTest, FileIsReadableByItsOwnerOnly) {
  ScratchDir dir;
  auto store = OpenOrDie(dir.file("s.db"));
  ASSERT_TRUE(store->Create({"ada", "m", {}, 1}).ok());
  for (const char* name : {"s.db", "s.db-wal", "s.db-shm"}) {
    struct stat info;
    ASSERT_EQ(stat(dir.file(name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << name;
  }
}

TEST(SqliteStoreTest, DeleteLeavesNoRows) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  {
    auto store = OpenOrDie(path);
    Session session = *store->Create({"ada", "m", {{"k", "v"}}, 1});
    Turn first = NthTurn(0), second = NthTurn(1);
    ASSERT_TRUE(store->CommitTurn(session.id, "", first, "").ok());
    Session fork = *store->Fork("ada", session.id, "", 2);
    ASSERT_TRUE(store->CommitTurn(session.id, first.id, second, "").ok());
    ASSERT_TRUE(store->Delete("ada", session.id).ok());
    EXPECT_EQ(CountRows(path, "turns"), 1);
    EXPECT_EQ(CountRows(path, "turn_messages"), 1);
    EXPECT_EQ(CountRows(path, "session_metadata"), 1);
    ASSERT_TRUE(store->Delete("ada", fork.id).ok());
  }
  for (const char* table : {"sessions", "session_metadata", "turns", "turn_messages"}) {
    EXPECT_EQ(CountRows(path, table), 0) << table;
  }
}

TEST(SqliteStoreTest, KilledWriterLeavesTheCommittedPrefix) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  const std::string session_id = OpenOrDie(path)->Create({"ada", "m", {}, 1})->id;
  std::string parent;
  int committed = 0;
  for (int round = 0; round < 5; ++round) {
    int acks[2];
    ASSERT_EQ(pipe(acks), 0);
    pid_t writer = fork();
    if (writer == 0) {
      auto store = OpenSqliteStore(path, {});
      if (!store.ok()) _exit(1);
      for (int n = committed;; ++n) {
        Turn turn = NthTurn(n);
        if (!(*store)->CommitTurn(session_id, parent, turn, "").ok()) _exit(2);
        parent = turn.id;
        if (write(acks[1], "+", 1) != 1) _exit(3);
      }
    }
    close(acks[1]);
    // The writer is somewhere inside a later commit when the signal comes.
    int acknowledged = 0;
    char ack;
    while (acknowledged < 4 + 3 * round && read(acks[0], &ack, 1) == 1) ++acknowledged;
    usleep(700 * round);
    kill(writer, SIGKILL);
    while (read(acks[0], &ack, 1) == 1) ++acknowledged;
    close(acks[0]);
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status)) << "writer failed by itself: " << WEXITSTATUS(status);

    auto store = OpenOrDie(path);
    std::vector<Turn> turns = *store->Path(session_id, "");
    const int n_turns = static_cast<int>(turns.size());
    EXPECT_GE(n_turns, committed + acknowledged);
    EXPECT_LE(n_turns, committed + acknowledged + 1);  // committed, but killed before it could say so
    for (int n = 0; n < n_turns; ++n) {
      Turn want = NthTurn(n);
      want.id = turns[n].id;
      want.session_id = session_id;
      want.parent_turn_id = n == 0 ? "" : turns[n - 1].id;
      want.index = n;
      EXPECT_EQ(turns[n], want);
    }
    EXPECT_EQ(CountRows(path, "turns"), n_turns);
    EXPECT_EQ(CountRows(path, "turn_messages"), n_turns);
    committed = n_turns;
    parent = turns.back().id;
    EXPECT_EQ(store->Get("ada", session_id)->head_turn_id, parent);
  }
}

TEST(SqliteStoreTest, GarbageIsNotADatabase) {
  ScratchDir dir;
  const std::string path = dir.file("garbage.db");
  std::ofstream(path) << std::string(8192, 'x');
  ExpectNamesFile(OpenSqliteStore(path, {}).status(), absl::StatusCode::kDataLoss, path);
}

TEST(SqliteStoreTest, DamagedPagesAreDataLossNotACrash) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  std::string session_id;
  {
    auto store = OpenOrDie(path);
    session_id = store->Create({"ada", "m", {}, 1})->id;
    std::string parent;
    for (int n = 0; n < 20; ++n) {
      Turn turn = NthTurn(n);
      ASSERT_TRUE(store->CommitTurn(session_id, parent, turn, "").ok());
      parent = turn.id;
    }
  }
  // Page 1 holds the schema and stays; every other page becomes noise.
  const auto size = std::filesystem::file_size(path);
  ASSERT_GT(size, 100000u);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    for (size_t at = 4096; at < size; ++at) file.put(static_cast<char>(at * 2654435761u >> 13));
  }
  absl::StatusOr<std::unique_ptr<SessionStore>> store = OpenSqliteStore(path, {});
  if (!store.ok()) {
    ExpectNamesFile(store.status(), absl::StatusCode::kDataLoss, path);
    return;
  }
  ExpectNamesFile((*store)->Get("ada", session_id).status(), absl::StatusCode::kDataLoss, path);
  ExpectNamesFile((*store)->Path(session_id, "").status(), absl::StatusCode::kDataLoss, path);
  ExpectNamesFile((*store)->CommitTurn(session_id, "", NthTurn(0), ""), absl::StatusCode::kDataLoss, path);
  ExpectNamesFile((*store)->Create({"ada", "m", {}, 1}).status(), absl::StatusCode::kDataLoss, path);
}

TEST(SqliteStoreTest, OtherDatabasesAndNewerSchemasAreRefused) {
  ScratchDir dir;
  const std::string other = dir.file("other.db");
  RunSql(other, "CREATE TABLE songs (title TEXT)");
  ExpectNamesFile(OpenSqliteStore(other, {}).status(), absl::StatusCode::kDataLoss, other);
  EXPECT_EQ(CountRows(other, "sqlite_master"), 1);

  const std::string newer = dir.file("newer.db");
  OpenOrDie(newer);
  RunSql(newer, "UPDATE schema_version SET version = 4");
  ExpectNamesFile(OpenSqliteStore(newer, {}).status(), absl::StatusCode::kFailedPrecondition, newer);
}

// Turn n of a conversation: its prompt is all of the turn before and `fresh` new ids.
Turn FollowingTurn(int n, const std::vector<int32_t>& before, int fresh) {
  Turn turn = NthTurn(n);
  turn.prompt_ids = before;
  for (int i = 0; i < fresh; ++i) turn.prompt_ids.push_back(1000 * n + i);
  return turn;
}

std::vector<int32_t> AllIds(const Turn& turn) {
  std::vector<int32_t> ids = turn.prompt_ids;
  ids.insert(ids.end(), turn.emitted_ids.begin(), turn.emitted_ids.end());
  return ids;
}

TEST(SqliteStoreTest, ALongSessionTakesTheIdsOfItsTurnsNotOfItsPrompts) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  std::vector<Turn> turns;
  {
    auto store = OpenOrDie(path);
    Session session = *store->Create({"ada", "m", {}, 1});
    std::string parent;
    for (int n = 0; n < 40; ++n) {
      turns.push_back(FollowingTurn(n, n == 0 ? std::vector<int32_t>() : AllIds(turns.back()), 100));
      ASSERT_TRUE(store->CommitTurn(session.id, parent, turns.back(), "").ok());
      parent = turns.back().id;
    }
    std::vector<Turn> read = *store->Path(session.id, "");
    ASSERT_EQ(read.size(), turns.size());
    for (size_t n = 0; n < read.size(); ++n) {
      EXPECT_EQ(read[n].prompt_ids, turns[n].prompt_ids) << n;
      EXPECT_EQ(read[n].emitted_ids, turns[n].emitted_ids) << n;
    }
  }
  EXPECT_EQ(NumberFrom(path, "SELECT sum(length(prompt_ids)) FROM turns"), 40 * 100 * 4);
}

TEST(SqliteStoreTest, ADatabaseOfVersionOneIsBroughtUpToDate) {
  ScratchDir dir;
  const std::string path = dir.file("old.db");
  const std::string first(32, 'a'), second(32, 'b'), session(32, 'c');
  RunSql(path,
         "CREATE TABLE schema_version (version INTEGER NOT NULL);"
         "INSERT INTO schema_version VALUES (1);"
         "CREATE TABLE turns (id TEXT NOT NULL PRIMARY KEY, session_id TEXT NOT NULL,"
         " parent_id TEXT REFERENCES turns(id), position INTEGER NOT NULL, reply TEXT NOT NULL,"
         " prompt_ids BLOB NOT NULL, emitted_ids BLOB NOT NULL, finish_reason TEXT NOT NULL,"
         " created_unix_ms INTEGER NOT NULL);"
         "CREATE INDEX turns_by_parent ON turns(parent_id);"
         "CREATE TABLE turn_messages (turn_id TEXT NOT NULL REFERENCES turns(id) ON DELETE CASCADE,"
         " position INTEGER NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL,"
         " PRIMARY KEY (turn_id, position));"
         "CREATE TABLE sessions (id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, model TEXT NOT NULL,"
         " created_unix_ms INTEGER NOT NULL, updated_unix_ms INTEGER NOT NULL,"
         " head_turn_id TEXT REFERENCES turns(id), home_worker TEXT, home_incarnation TEXT,"
         " compression_json TEXT NOT NULL);"
         "CREATE INDEX sessions_by_owner ON sessions(owner, created_unix_ms, id);"
         "CREATE INDEX sessions_by_head ON sessions(head_turn_id);"
         "CREATE TABLE session_metadata (session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,"
         " key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session_id, key)) WITHOUT ROWID;"
         "INSERT INTO turns VALUES ('" +
             first + "', '" + session +
             "', NULL, 0, 'hi',"
             " x'0100000002000000', x'03000000', 'STOP_EOS', 5);"
             "INSERT INTO turns VALUES ('" +
             second + "', '" + session + "', '" + first +
             "', 1, 'ho',"
             " x'01000000020000000300000004000000', x'05000000', 'STOP_EOS', 6);"
             "INSERT INTO turn_messages VALUES ('" +
             first +
             "', 0, 'user', 'one');"
             "INSERT INTO sessions VALUES ('" +
             session + "', 'ada', 'm', 1, 6, '" + second + "', NULL, NULL, '');");

  Turn third = NthTurn(3);
  third.prompt_ids = {1, 2, 3, 4, 5, 6};
  for (bool again : {false, true}) {
    auto store = OpenOrDie(path);
    if (!again) {
      std::vector<Turn> turns = *store->Path(session, "");
      ASSERT_EQ(turns.size(), 2u);
      EXPECT_EQ(turns[0].prompt_ids, std::vector<int32_t>({1, 2}));
      EXPECT_EQ(turns[0].messages, std::vector<TurnMessage>({{"user", "one"}}));
      EXPECT_EQ(turns[1].prompt_ids, std::vector<int32_t>({1, 2, 3, 4}));
      EXPECT_EQ(turns[1].emitted_ids, std::vector<int32_t>({5}));
      EXPECT_EQ(turns[1].reply, "ho");
      ASSERT_TRUE(store->CommitTurn(session, second, third, "").ok());
    }
    EXPECT_EQ(store->Path(session, "")->at(2).prompt_ids, third.prompt_ids);
  }
  EXPECT_EQ(NumberFrom(path, "SELECT version FROM schema_version"), 3);
  // Texts and ids of the two old turns as the file held them, and of the third what it added.
  const int64_t old_bytes = (2 + 7 + 3 * 4) + (2 + 5 * 4);
  EXPECT_EQ(NumberFrom(path, "SELECT bytes FROM owners WHERE owner = 'ada'"),
            old_bytes + TurnBytes(third, 5));
  EXPECT_EQ(NumberFrom(path, "SELECT length(prompt_ids) FROM turns WHERE shared_ids = 5"), 4);
  OpenOrDie(dir.file("fresh.db"));
  // The same columns in the same order, whichever way the file came to them.
  for (const char* table : {"turns", "sessions", "turn_messages", "owners"}) {
    EXPECT_EQ(ColumnsOf(path, table), ColumnsOf(dir.file("fresh.db"), table)) << table;
  }
}

TEST(SqliteStoreTest, ATurnThatSharesMoreThanThereIsIsDataLoss) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  Session session;
  Turn first = NthTurn(0), second = FollowingTurn(1, AllIds(first), 3);
  {
    auto store = OpenOrDie(path);
    session = *store->Create({"ada", "m", {}, 1});
    ASSERT_TRUE(store->CommitTurn(session.id, "", first, "").ok());
    ASSERT_TRUE(store->CommitTurn(session.id, first.id, second, "").ok());
  }
  for (const char* shared : {"5003", "-1"}) {
    RunSql(path, std::string("UPDATE turns SET shared_ids = ") + shared + " WHERE parent_id IS NOT NULL");
    auto store = OpenOrDie(path);
    ExpectNamesFile(store->Path(session.id, "").status(), absl::StatusCode::kDataLoss, path);
    ExpectNamesFile(store->CommitTurn(session.id, second.id, NthTurn(2), ""), absl::StatusCode::kDataLoss,
                    path);
  }
}

TEST(SqliteStoreTest, PathsThatCannotBeAFileAreRefused) {
  for (const char* path : {"", ":memory:"}) {
    EXPECT_EQ(OpenSqliteStore(path, {}).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  ScratchDir dir;
  const std::string nowhere = dir.file("no/such/dir.db");
  ExpectNamesFile(OpenSqliteStore(nowhere, {}).status(), absl::StatusCode::kPermissionDenied, nowhere);
  ExpectNamesFile(OpenSqliteStore(dir.path(), {}).status(), absl::StatusCode::kPermissionDenied, dir.path());
}

TEST(SqliteStoreTest, ReadOnlyDirectoryOrFileIsPermissionDenied) {
  ScratchDir dir;
  OpenOrDie(dir.file("existing.db"));
  ASSERT_EQ(chmod(dir.file("existing.db").c_str(), 0444), 0);
  ASSERT_EQ(chmod(dir.path().c_str(), 0555), 0);
  for (const char* name : {"fresh.db", "existing.db"}) {
    const std::string path = dir.file(name);
    EXPECT_EQ(RunUnprivileged([&] {
                absl::Status status = OpenSqliteStore(path, {}).status();
                bool named = std::string(status.message()).find(path) != std::string::npos;
                return status.code() == absl::StatusCode::kPermissionDenied && named ? 0 : 1;
              }),
              0)
        << name;
  }
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
}

// SQLite's own write calls, replaced while a FullDisk lives.
class FullDisk {
 public:
  FullDisk() {
    for (const char* name : kCalls) {
      originals_.push_back(vfs_->xGetSystemCall(vfs_, name));
      vfs_->xSetSystemCall(vfs_, name, reinterpret_cast<sqlite3_syscall_ptr>(NoSpace));
    }
  }
  ~FullDisk() {
    for (size_t i = 0; i < originals_.size(); ++i) vfs_->xSetSystemCall(vfs_, kCalls[i], originals_[i]);
  }

 private:
  static constexpr const char* kCalls[] = {"write", "pwrite", "pwrite64"};
  static ssize_t NoSpace(int, const void*, size_t, off_t) {
    errno = ENOSPC;
    return -1;
  }
  sqlite3_vfs* const vfs_ = sqlite3_vfs_find(nullptr);
  std::vector<sqlite3_syscall_ptr> originals_;
};

TEST(SqliteStoreTest, FullDiskIsResourceExhaustedAndKeepsTheParentState) {
  ScratchDir dir;
  const std::string path = dir.file("s.db");
  auto store = OpenOrDie(path);
  Session session = *store->Create({"ada", "m", {}, 1});
  Turn first = NthTurn(0), second = NthTurn(1);
  ASSERT_TRUE(store->CommitTurn(session.id, "", first, "").ok());
  Session before = *store->Get("ada", session.id);
  {
    FullDisk full;
    ExpectNamesFile(store->CommitTurn(session.id, first.id, second, ""), absl::StatusCode::kResourceExhausted,
                    path);
    ExpectNamesFile(store->Delete("ada", session.id).status(), absl::StatusCode::kResourceExhausted, path);
    const std::string fresh = dir.file("fresh.db");
    ExpectNamesFile(OpenSqliteStore(fresh, {}).status(), absl::StatusCode::kResourceExhausted, fresh);
  }
  EXPECT_EQ(*store->Get("ada", session.id), before);
  EXPECT_EQ(store->Path(session.id, "")->size(), 1u);
  EXPECT_TRUE(store->CommitTurn(session.id, first.id, second, "").ok());
}

TEST(SqliteStoreTest, TwoConnectionsToOneFileStayConsistent) {
  ScratchDir dir;
  auto one = OpenOrDie(dir.file("s.db")), other = OpenOrDie(dir.file("s.db"));
  Session session = *one->Create({"ada", "m", {}, 1});
  Turn first = NthTurn(0), second = NthTurn(1);
  ASSERT_TRUE(one->CommitTurn(session.id, "", first, "").ok());
  EXPECT_EQ(other->CommitTurn(session.id, "", second, "").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(other->CommitTurn(session.id, first.id, second, "").ok());
  EXPECT_EQ(*one->Path(session.id, ""), *other->Path(session.id, ""));
}

}  // namespace
}  // namespace sluice
