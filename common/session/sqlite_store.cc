#include "common/session/sqlite_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/session/session_rules.h"
#include "common/session/sqlite_db.h"
#include "common/session/sqlite_schema.h"
#include "common/session/turn_ids.h"

namespace sluice {
namespace {

#define SLUICE_SESSION_COLUMNS                                                                              \
  "SELECT id, owner, model, created_unix_ms, updated_unix_ms, head_turn_id, home_worker, home_incarnation," \
  " compression_json, (SELECT position + 1 FROM turns WHERE id = head_turn_id) FROM sessions "

// An absent turn id is NULL in the tables, so that foreign keys hold.
void BindTurnId(SqliteQuery* query, absl::string_view turn_id) {
  if (turn_id.empty()) {
    query->Null();
  } else {
    query->Text(turn_id);
  }
}

void BindHome(SqliteQuery* query, const std::optional<SessionHome>& home) {
  if (home) {
    query->Text(home->worker).Text(home->incarnation);
  } else {
    query->Null().Null();
  }
}

class SqliteStore final : public SessionStore {
 public:
  SqliteStore(std::unique_ptr<SqliteDb> db, const SessionLimits& limits)
      : limits_(limits), db_(std::move(db)) {}

  absl::StatusOr<Session> Create(const NewSession& fresh) override {
    SLUICE_ASSIGN_OR_RETURN(Session session, SessionOf(fresh));
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    SLUICE_RETURN_IF_ERROR(Insert(session));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return session;
  }

  absl::StatusOr<Session> Get(absl::string_view owner, absl::string_view session_id) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginRead());
    SLUICE_ASSIGN_OR_RETURN(Session session, Owned(owner, session_id));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return session;
  }

  absl::StatusOr<SessionPage> List(absl::string_view owner, absl::string_view page_token,
                                   int page_size) override {
    SLUICE_RETURN_IF_ERROR(CheckPageSize(page_size));
    SLUICE_ASSIGN_OR_RETURN(PageCursor cursor, DecodePageToken(page_token));
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginRead());
    SessionPage page;
    {
      SqliteQuery query(db_.get(), SLUICE_SESSION_COLUMNS
                        "WHERE owner = ? AND (created_unix_ms, id) < (?, ?)"
                        " ORDER BY created_unix_ms DESC, id DESC LIMIT ?");
      query.Text(owner).Int(cursor.created_unix_ms).Text(cursor.session_id).Int(page_size + 1);
      SLUICE_RETURN_IF_ERROR(ReadSessions(&query, &page.sessions));
    }
    if (page.sessions.size() > static_cast<size_t>(page_size)) {
      page.sessions.pop_back();
      page.next_page_token = EncodePageToken(page.sessions.back());
    }
    for (Session& session : page.sessions) SLUICE_RETURN_IF_ERROR(ReadMetadata(&session));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return page;
  }

  absl::StatusOr<std::vector<std::string>> Delete(absl::string_view owner,
                                                  absl::string_view session_id) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    SLUICE_ASSIGN_OR_RETURN(Session session, Owned(owner, session_id));
    SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> dropped, Erase(session));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return dropped;
  }

  absl::StatusOr<Session> Fork(absl::string_view owner, absl::string_view session_id,
                               absl::string_view turn_id, int64_t created_unix_ms) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    SLUICE_ASSIGN_OR_RETURN(Session fork, Owned(owner, session_id));
    if (!turn_id.empty()) SLUICE_RETURN_IF_ERROR(MoveBack(turn_id, &fork));
    fork.id = RandomId128();
    fork.created_unix_ms = fork.updated_unix_ms = created_unix_ms;
    SLUICE_RETURN_IF_ERROR(Insert(fork));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return fork;
  }

  absl::StatusOr<Truncated> Truncate(absl::string_view owner, absl::string_view session_id,
                                     absl::string_view turn_id, int64_t updated_unix_ms) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    Truncated out;
    SLUICE_ASSIGN_OR_RETURN(out.session, Owned(owner, session_id));
    const std::string old_head = out.session.head_turn_id;
    SLUICE_RETURN_IF_ERROR(MoveBack(turn_id, &out.session));
    out.session.updated_unix_ms = updated_unix_ms;
    SqliteQuery update(db_.get(), "UPDATE sessions SET head_turn_id = ?, updated_unix_ms = ? WHERE id = ?");
    SLUICE_RETURN_IF_ERROR(update.Text(turn_id).Int(updated_unix_ms).Text(session_id).Run());
    SLUICE_ASSIGN_OR_RETURN(out.dropped_turn_ids, Release(owner, old_head));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return out;
  }

  absl::Status CheckRoom(absl::string_view owner) override {
    MutexLock lock(&mu_);
    SqliteQuery query(db_.get(), "SELECT bytes FROM owners WHERE owner = ?");
    SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(owner).Next());
    if (!row || query.IntAt(0) < limits_.max_bytes_per_owner) return absl::OkStatus();
    return TooManyBytes(owner, query.IntAt(0), limits_.max_bytes_per_owner);
  }

  absl::Status CommitTurn(absl::string_view session_id, absl::string_view expected_parent_turn_id,
                          const Turn& turn, absl::string_view compression_json) override {
    SLUICE_RETURN_IF_ERROR(CheckTurn(turn));
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    SLUICE_ASSIGN_OR_RETURN(std::string head, HeadOf(session_id));
    if (head != expected_parent_turn_id) return StaleParent(expected_parent_turn_id, head);
    SLUICE_RETURN_IF_ERROR(InsertTurn(session_id, head, turn));
    SqliteQuery advance(db_.get(),
                        "UPDATE sessions SET head_turn_id = ?1, updated_unix_ms = ?2,"
                        " compression_json = iif(?3 = '', compression_json, ?3) WHERE id = ?4");
    advance.Text(turn.id).Int(turn.created_unix_ms).Text(compression_json).Text(session_id);
    SLUICE_RETURN_IF_ERROR(advance.Run());
    return transaction.Commit();
  }

  absl::StatusOr<std::vector<Turn>> Path(absl::string_view session_id, absl::string_view turn_id) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginRead());
    SLUICE_ASSIGN_OR_RETURN(std::string at, HeadOf(session_id));
    if (!turn_id.empty()) {
      SLUICE_RETURN_IF_ERROR(CheckOnPath(session_id, at, turn_id));
      at = std::string(turn_id);
    }
    std::vector<Turn> path;
    while (!at.empty()) {
      SLUICE_ASSIGN_OR_RETURN(Turn turn, ReadTurn(at));
      at = turn.parent_turn_id;
      path.push_back(std::move(turn));
    }
    std::reverse(path.begin(), path.end());
    std::vector<int32_t> before;
    for (Turn& turn : path) {
      SLUICE_ASSIGN_OR_RETURN(TurnIds ids, ReadIds(turn.id));
      SLUICE_RETURN_IF_ERROR(Append(turn.id, ids, &before));
      turn.prompt_ids.assign(before.begin(), before.end() - static_cast<int64_t>(ids.emitted.size()));
      turn.emitted_ids = std::move(ids.emitted);
    }
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return path;
  }

  absl::StatusOr<bool> SetHome(absl::string_view session_id, const std::optional<SessionHome>& expected,
                               const std::optional<SessionHome>& home) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    SLUICE_RETURN_IF_ERROR(HeadOf(session_id).status());
    bool changed = false;
    {
      SqliteQuery update(db_.get(),
                         "UPDATE sessions SET home_worker = ?, home_incarnation = ? WHERE id = ?"
                         " AND home_worker IS ? AND home_incarnation IS ? RETURNING id");
      BindHome(&update, home);
      update.Text(session_id);
      BindHome(&update, expected);
      SLUICE_ASSIGN_OR_RETURN(changed, update.Next());
    }
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return changed;
  }

  absl::StatusOr<std::vector<Session>> Idle(int64_t updated_before_unix_ms, int limit) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginRead());
    std::vector<Session> idle;
    {
      SqliteQuery query(
          db_.get(), SLUICE_SESSION_COLUMNS "WHERE updated_unix_ms < ? ORDER BY updated_unix_ms, id LIMIT ?");
      SLUICE_RETURN_IF_ERROR(ReadSessions(&query.Int(updated_before_unix_ms).Int(limit), &idle));
    }
    for (Session& session : idle) SLUICE_RETURN_IF_ERROR(ReadMetadata(&session));
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return idle;
  }

  absl::StatusOr<std::optional<std::vector<std::string>>> DeleteIdle(
      absl::string_view session_id, int64_t updated_before_unix_ms) override {
    MutexLock lock(&mu_);
    SqliteTransaction transaction(db_.get());
    SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
    std::vector<Session> found;
    {
      SqliteQuery query(db_.get(), SLUICE_SESSION_COLUMNS "WHERE id = ? AND updated_unix_ms < ?");
      SLUICE_RETURN_IF_ERROR(ReadSessions(&query.Text(session_id).Int(updated_before_unix_ms), &found));
    }
    std::optional<std::vector<std::string>> dropped;
    if (!found.empty()) {
      SLUICE_ASSIGN_OR_RETURN(dropped, Erase(found[0]));
    }
    SLUICE_RETURN_IF_ERROR(transaction.Commit());
    return dropped;
  }

  absl::StatusOr<SessionTotals> Totals() override {
    MutexLock lock(&mu_);
    SqliteQuery query(db_.get(),
                      "SELECT (SELECT count(*) FROM sessions), (SELECT ifnull(sum(bytes), 0) FROM owners)");
    SLUICE_RETURN_IF_ERROR(query.Next().status());
    return SessionTotals{query.IntAt(0), query.IntAt(1)};
  }

 private:
  static Session SessionAt(const SqliteQuery& row) {
    Session session;
    session.id = row.TextAt(0);
    session.owner = row.TextAt(1);
    session.model = row.TextAt(2);
    session.created_unix_ms = row.IntAt(3);
    session.updated_unix_ms = row.IntAt(4);
    session.head_turn_id = row.TextAt(5);
    if (!row.NullAt(6)) session.home = SessionHome{row.TextAt(6), row.TextAt(7)};
    session.compression_json = row.TextAt(8);
    session.turns = static_cast<int>(row.IntAt(9));
    return session;
  }

  // The methods below run inside the caller's transaction.

  absl::StatusOr<Session> Owned(absl::string_view owner, absl::string_view session_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Session session;
    {
      SqliteQuery query(db_.get(), SLUICE_SESSION_COLUMNS "WHERE id = ? AND owner = ?");
      SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(session_id).Text(owner).Next());
      if (!row) return SessionNotFound(session_id);
      session = SessionAt(query);
    }
    SLUICE_RETURN_IF_ERROR(ReadMetadata(&session));
    return session;
  }

  // Without metadata.
  absl::Status ReadSessions(SqliteQuery* query, std::vector<Session>* sessions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(bool row, query->Next());
      if (!row) return absl::OkStatus();
      sessions->push_back(SessionAt(*query));
    }
  }

  absl::Status ReadMetadata(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery query(db_.get(), "SELECT key, value FROM session_metadata WHERE session_id = ?");
    query.Text(session->id);
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(bool row, query.Next());
      if (!row) return absl::OkStatus();
      session->metadata[query.TextAt(0)] = query.TextAt(1);
    }
  }

  absl::Status Insert(const Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    {
      SqliteQuery count(db_.get(), "SELECT count(*) FROM sessions WHERE owner = ?");
      SLUICE_RETURN_IF_ERROR(count.Text(session.owner).Next().status());
      if (count.IntAt(0) >= limits_.max_sessions_per_owner)
        return TooManySessions(session.owner, limits_.max_sessions_per_owner);
    }
    SqliteQuery insert(db_.get(), "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    insert.Text(session.id).Text(session.owner).Text(session.model);
    insert.Int(session.created_unix_ms).Int(session.updated_unix_ms);
    BindTurnId(&insert, session.head_turn_id);
    BindHome(&insert, session.home);
    SLUICE_RETURN_IF_ERROR(insert.Text(session.compression_json).Run());
    for (const auto& [key, value] : session.metadata) {
      SqliteQuery entry(db_.get(), "INSERT INTO session_metadata VALUES (?, ?, ?)");
      SLUICE_RETURN_IF_ERROR(entry.Text(session.id).Text(key).Text(value).Run());
    }
    return absl::OkStatus();
  }

  absl::Status InsertTurn(absl::string_view session_id, absl::string_view parent_id, const Turn& turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    {
      SqliteQuery existing(db_.get(), "SELECT 1 FROM turns WHERE id = ?");
      SLUICE_ASSIGN_OR_RETURN(bool exists, existing.Text(turn.id).Next());
      if (exists) return TurnExists(turn.id);
    }
    SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> before, IdsUpTo(parent_id));
    StoredPrompt prompt = StorePrompt(before, turn.prompt_ids);
    std::string emitted_ids = EncodeIds(turn.emitted_ids);
    SqliteQuery insert(db_.get(),
                       "INSERT INTO turns VALUES (?1, ?2, ?3,"
                       " ifnull((SELECT position + 1 FROM turns WHERE id = ?3), 0),"
                       " ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
    insert.Text(turn.id).Text(session_id);
    BindTurnId(&insert, parent_id);
    insert.Text(turn.reply)
        .Blob(prompt.rest)
        .Blob(emitted_ids)
        .Text(turn.finish_reason)
        .Int(turn.created_unix_ms)
        .Int(prompt.shared)
        .Int(TurnBytes(turn, prompt.shared));
    SLUICE_RETURN_IF_ERROR(insert.Run());
    SqliteQuery count(db_.get(),
                      "INSERT INTO owners SELECT owner, ? FROM sessions WHERE id = ?"
                      " ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes");
    SLUICE_RETURN_IF_ERROR(count.Int(TurnBytes(turn, prompt.shared)).Text(session_id).Run());
    for (size_t i = 0; i < turn.messages.size(); ++i) {
      SqliteQuery message(db_.get(), "INSERT INTO turn_messages VALUES (?, ?, ?, ?)");
      message.Text(turn.id).Int(static_cast<int64_t>(i));
      message.Text(turn.messages[i].role).Text(turn.messages[i].content);
      SLUICE_RETURN_IF_ERROR(message.Run());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> HeadOf(absl::string_view session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery query(db_.get(), "SELECT head_turn_id FROM sessions WHERE id = ?");
    SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(session_id).Next());
    if (!row) return SessionNotFound(session_id);
    return query.TextAt(0);
  }

  absl::StatusOr<std::vector<std::string>> Erase(const Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery erase(db_.get(), "DELETE FROM sessions WHERE id = ?");
    SLUICE_RETURN_IF_ERROR(erase.Text(session.id).Run());
    return Release(session.owner, session.head_turn_id);
  }

  // From an old head on, turns that nothing holds any more are dropped; their ids, first to last.
  absl::StatusOr<std::vector<std::string>> Release(absl::string_view owner, std::string turn_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::string> dropped;
    int64_t bytes = 0;
    while (!turn_id.empty()) {
      SLUICE_ASSIGN_OR_RETURN(bool held, IsHeld(turn_id));
      if (held) break;
      SqliteQuery erase(db_.get(), "DELETE FROM turns WHERE id = ? RETURNING parent_id, bytes");
      SLUICE_ASSIGN_OR_RETURN(bool row, erase.Text(turn_id).Next());
      if (!row) return MissingTurn(turn_id);
      bytes += erase.IntAt(1);
      dropped.push_back(std::exchange(turn_id, erase.TextAt(0)));
    }
    SqliteQuery count(db_.get(), "UPDATE owners SET bytes = bytes - ? WHERE owner = ?");
    SLUICE_RETURN_IF_ERROR(count.Int(bytes).Text(owner).Run());
    std::reverse(dropped.begin(), dropped.end());
    return dropped;
  }

  // `turn_id` of the session's path becomes its head.
  absl::Status MoveBack(absl::string_view turn_id, Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SLUICE_RETURN_IF_ERROR(CheckOnPath(session->id, session->head_turn_id, turn_id));
    session->head_turn_id = std::string(turn_id);
    SqliteQuery query(db_.get(), "SELECT position + 1 FROM turns WHERE id = ?");
    SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(turn_id).Next());
    if (!row) return MissingTurn(turn_id);
    session->turns = static_cast<int>(query.IntAt(0));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ParentOf(absl::string_view turn_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery query(db_.get(), "SELECT parent_id FROM turns WHERE id = ?");
    SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(turn_id).Next());
    if (!row) return MissingTurn(turn_id);
    return query.TextAt(0);
  }

  absl::StatusOr<bool> IsHeld(absl::string_view turn_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery query(db_.get(),
                      "SELECT EXISTS (SELECT 1 FROM turns WHERE parent_id = ?1)"
                      " OR EXISTS (SELECT 1 FROM sessions WHERE head_turn_id = ?1)");
    SLUICE_RETURN_IF_ERROR(query.Text(turn_id).Next().status());
    return query.IntAt(0) != 0;
  }

  absl::Status CheckOnPath(absl::string_view session_id, absl::string_view head, absl::string_view turn_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string at(head);
    while (!at.empty() && at != turn_id) {
      SLUICE_ASSIGN_OR_RETURN(at, ParentOf(at));
    }
    return at.empty() ? TurnNotOnPath(turn_id, session_id) : absl::OkStatus();
  }

  // As stored: a turn's prompt begins with ids of the turns before it.
  struct TurnIds {
    std::string parent_id;
    int64_t shared = 0;
    std::string rest;
    std::vector<int32_t> emitted;
  };
  absl::StatusOr<TurnIds> ReadIds(absl::string_view turn_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SqliteQuery query(db_.get(),
                      "SELECT parent_id, shared_ids, prompt_ids, emitted_ids FROM turns WHERE id = ?");
    SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(turn_id).Next());
    if (!row) return MissingTurn(turn_id);
    return TurnIds{query.TextAt(0), query.IntAt(1), std::string(query.BlobAt(2)), DecodeIds(query.BlobAt(3))};
  }

  // From the parent's prompt and emitted ids to the turn's.
  absl::Status Append(absl::string_view turn_id, const TurnIds& turn, std::vector<int32_t>* ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::StatusOr<std::vector<int32_t>> prompt = RestorePrompt(*ids, turn.shared, turn.rest);
    if (!prompt.ok()) {
      return absl::DataLossError(absl::StrCat("session database ", db_->path(), ": turn '", turn_id, "' ",
                                              prompt.status().message()));
    }
    *ids = *std::move(prompt);
    ids->insert(ids->end(), turn.emitted.begin(), turn.emitted.end());
    return absl::OkStatus();
  }

  // The turn's prompt and emitted ids; none for an empty id.
  absl::StatusOr<std::vector<int32_t>> IdsUpTo(absl::string_view turn_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::pair<std::string, TurnIds>> chain;  // back to a turn that shares nothing
    for (std::string at(turn_id); !at.empty();) {
      SLUICE_ASSIGN_OR_RETURN(TurnIds turn, ReadIds(at));
      std::string parent_id = turn.shared == 0 ? "" : turn.parent_id;
      chain.emplace_back(std::exchange(at, std::move(parent_id)), std::move(turn));
    }
    std::vector<int32_t> ids;
    for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
      SLUICE_RETURN_IF_ERROR(Append(it->first, it->second, &ids));
    }
    return ids;
  }

  // Without its ids.
  absl::StatusOr<Turn> ReadTurn(absl::string_view turn_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Turn turn;
    {
      SqliteQuery query(db_.get(),
                        "SELECT id, session_id, parent_id, position, reply, finish_reason, created_unix_ms"
                        " FROM turns WHERE id = ?");
      SLUICE_ASSIGN_OR_RETURN(bool row, query.Text(turn_id).Next());
      if (!row) return MissingTurn(turn_id);
      turn.id = query.TextAt(0);
      turn.session_id = query.TextAt(1);
      turn.parent_turn_id = query.TextAt(2);
      turn.index = static_cast<int>(query.IntAt(3));
      turn.reply = query.TextAt(4);
      turn.finish_reason = query.TextAt(5);
      turn.created_unix_ms = query.IntAt(6);
    }
    SqliteQuery messages(db_.get(),
                         "SELECT role, content FROM turn_messages WHERE turn_id = ? ORDER BY position");
    messages.Text(turn_id);
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(bool row, messages.Next());
      if (!row) return turn;
      turn.messages.push_back({messages.TextAt(0), messages.TextAt(1)});
    }
  }

  absl::Status MissingTurn(absl::string_view turn_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::DataLossError(
        absl::StrCat("session database ", db_->path(), ": turn '", turn_id, "' is referred to but missing"));
  }

  const SessionLimits limits_;
  Mutex mu_;
  const std::unique_ptr<SqliteDb> db_ ABSL_PT_GUARDED_BY(mu_);
};

#undef SLUICE_SESSION_COLUMNS

}  // namespace

absl::StatusOr<std::unique_ptr<SessionStore>> OpenSqliteStore(const std::string& path,
                                                              const SessionLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> db, SqliteDb::Open(path));
  SLUICE_RETURN_IF_ERROR(PrepareSessionSchema(db.get()));
  return std::make_unique<SqliteStore>(std::move(db), limits);
}

}  // namespace sluice
