#include "common/session/postgres_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/session/pg_pool.h"
#include "common/session/pg_rows.h"
#include "common/session/pg_schema.h"
#include "common/session/session_rules.h"
#include "common/session/turn_ids.h"

namespace sluice {
namespace {

// A transaction locks its session's row first and its owner's row after it, never the other way round. Turns
// are inserted under the session's lock and dropped under the owner's: of two routers that delete the last
// two sessions over a turn, the second one sees that nobody holds it.
//
// A body that is repeated after a commit of unknown outcome first looks whether its change is there.
class PostgresStore final : public SessionStore {
 public:
  PostgresStore(std::unique_ptr<PgPool> pool, const SessionLimits& limits)
      : pool_(std::move(pool)), limits_(limits) {}

  absl::StatusOr<Session> Create(const NewSession& fresh) override {
    SLUICE_ASSIGN_OR_RETURN(Session session, SessionOf(fresh));
    SLUICE_RETURN_IF_ERROR(
        pool_->Transact([&](PgConnection& db, bool repeated) { return Insert(db, session, repeated); }));
    return session;
  }

  absl::StatusOr<Session> Get(absl::string_view owner, absl::string_view session_id) override {
    if (!IsId(session_id)) return SessionNotFound(session_id);
    SLUICE_ASSIGN_OR_RETURN(PgRows rows, pool_->Query(SLUICE_PG_SESSION "WHERE id = $1 AND owner = $2",
                                                      PgParams().Text(session_id).Text(owner)));
    if (rows.size() == 0) return SessionNotFound(session_id);
    return SessionAt(rows, 0);
  }

  absl::StatusOr<SessionPage> List(absl::string_view owner, absl::string_view page_token,
                                   int page_size) override {
    SLUICE_RETURN_IF_ERROR(CheckPageSize(page_size));
    SLUICE_ASSIGN_OR_RETURN(PageCursor cursor, DecodePageToken(page_token));
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        pool_->Query(
            SLUICE_PG_SESSION "WHERE owner = $1 AND (created_unix_ms, id) < ($2, $3)"
                              " ORDER BY created_unix_ms DESC, id DESC LIMIT $4",
            PgParams().Text(owner).Int(cursor.created_unix_ms).Text(cursor.session_id).Int(page_size + 1)));
    SessionPage page;
    SLUICE_ASSIGN_OR_RETURN(page.sessions, SessionsOf(rows));
    if (page.sessions.size() > static_cast<size_t>(page_size)) {
      page.sessions.pop_back();
      page.next_page_token = EncodePageToken(page.sessions.back());
    }
    return page;
  }

  absl::StatusOr<std::vector<std::string>> Delete(absl::string_view owner,
                                                  absl::string_view session_id) override {
    std::vector<std::string> dropped;
    SLUICE_RETURN_IF_ERROR(pool_->Transact([&](PgConnection& db, bool repeated) -> absl::Status {
      absl::StatusOr<Session> session = Owned(db, owner, session_id);
      if (repeated && absl::IsNotFound(session.status())) return absl::OkStatus();
      SLUICE_RETURN_IF_ERROR(session.status());
      return Erase(db, *session, &dropped);
    }));
    return dropped;
  }

  absl::StatusOr<Session> Fork(absl::string_view owner, absl::string_view session_id,
                               absl::string_view turn_id, int64_t created_unix_ms) override {
    const std::string fork_id = RandomId128();
    Session fork;
    SLUICE_RETURN_IF_ERROR(pool_->Transact([&](PgConnection& db, bool repeated) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(fork, Owned(db, owner, session_id));
      if (!turn_id.empty()) SLUICE_RETURN_IF_ERROR(MoveBack(db, turn_id, &fork));
      fork.id = fork_id;
      fork.created_unix_ms = fork.updated_unix_ms = created_unix_ms;
      return Insert(db, fork, repeated);
    }));
    return fork;
  }

  absl::StatusOr<Truncated> Truncate(absl::string_view owner, absl::string_view session_id,
                                     absl::string_view turn_id, int64_t updated_unix_ms) override {
    Truncated out;
    SLUICE_RETURN_IF_ERROR(pool_->Transact([&](PgConnection& db, bool) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(out.session, Owned(db, owner, session_id));
      const std::string old_head = out.session.head_turn_id;
      SLUICE_RETURN_IF_ERROR(MoveBack(db, turn_id, &out.session));
      out.session.updated_unix_ms = updated_unix_ms;
      SLUICE_RETURN_IF_ERROR(
          db.Run("UPDATE sluice_sessions SET head_turn_id = $2, turns = $3, updated_unix_ms = $4 WHERE id = "
                 "$1",
                 PgParams().Text(session_id).Text(turn_id).Int(out.session.turns).Int(updated_unix_ms))
              .status());
      SLUICE_RETURN_IF_ERROR(LockOwner(db, owner).status());
      return Drop(db, owner, old_head, &out.dropped_turn_ids);
    }));
    return out;
  }

  absl::Status CheckRoom(absl::string_view owner) override {
    SLUICE_ASSIGN_OR_RETURN(PgRows rows, pool_->Query("SELECT bytes FROM sluice_owners WHERE owner = $1",
                                                      PgParams().Text(owner)));
    if (rows.size() == 0 || rows.IntAt(0, 0) < limits_.max_bytes_per_owner) return absl::OkStatus();
    return TooManyBytes(owner, rows.IntAt(0, 0), limits_.max_bytes_per_owner);
  }

  absl::Status CommitTurn(absl::string_view session_id, absl::string_view expected_parent_turn_id,
                          const Turn& turn, absl::string_view compression_json) override {
    SLUICE_RETURN_IF_ERROR(CheckTurn(turn));
    if (!IsId(session_id)) return SessionNotFound(session_id);
    return pool_->Transact([&](PgConnection& db, bool repeated) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(
          PgRows session,
          db.Run("SELECT owner, head_turn_id, turns FROM sluice_sessions WHERE id = $1 FOR UPDATE",
                 PgParams().Text(session_id)));
      if (session.size() == 0) return SessionNotFound(session_id);
      const std::string owner = session.TextAt(0, 0), head = session.TextAt(0, 1);
      SLUICE_ASSIGN_OR_RETURN(
          PgRows known, db.Run("SELECT session_id, coalesce(parent_id, '') FROM sluice_turns WHERE id = $1",
                               PgParams().Text(turn.id)));
      const bool done = known.size() == 1 && known.TextAt(0, 0) == session_id &&
                        known.TextAt(0, 1) == expected_parent_turn_id;
      if (repeated && done) return absl::OkStatus();
      if (head != expected_parent_turn_id) return StaleParent(expected_parent_turn_id, head);
      if (known.size() == 1) return TurnExists(turn.id);
      int64_t bytes = 0;
      SLUICE_RETURN_IF_ERROR(InsertTurn(db, session_id, head, session.IntAt(0, 2), turn, &bytes));
      SLUICE_RETURN_IF_ERROR(
          db.Run("UPDATE sluice_sessions SET head_turn_id = $2, turns = turns + 1, updated_unix_ms = $3,"
                 " compression_json = CASE WHEN $4::text = '' THEN compression_json ELSE $4::text END"
                 " WHERE id = $1",
                 PgParams().Text(session_id).Text(turn.id).Int(turn.created_unix_ms).Text(compression_json))
              .status());
      return CountFor(db, owner, 0, bytes);
    });
  }

  absl::StatusOr<std::vector<Turn>> Path(absl::string_view session_id, absl::string_view turn_id) override {
    if (!IsId(session_id)) return SessionNotFound(session_id);
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        pool_->Query(
            "WITH RECURSIVE t AS ("
            " SELECT turns.* FROM sluice_turns turns JOIN sluice_sessions s ON s.head_turn_id = turns.id"
            " WHERE s.id = $1"
            " UNION ALL SELECT turns.* FROM t JOIN sluice_turns turns ON turns.id = t.parent_id)"
            " SELECT " SLUICE_PG_TURN " FROM t ORDER BY t.position",
            PgParams().Text(session_id)));
    if (rows.size() == 0) {
      SLUICE_ASSIGN_OR_RETURN(PgRows session, pool_->Query("SELECT id FROM sluice_sessions WHERE id = $1",
                                                           PgParams().Text(session_id)));
      if (session.size() == 0) return SessionNotFound(session_id);
    }
    SLUICE_ASSIGN_OR_RETURN(std::vector<Turn> path, TurnsOf(rows));
    if (turn_id.empty()) return path;
    auto last = std::find_if(path.begin(), path.end(), [&](const Turn& turn) { return turn.id == turn_id; });
    if (last == path.end()) return TurnNotOnPath(turn_id, session_id);
    path.erase(last + 1, path.end());
    return path;
  }

  absl::StatusOr<bool> SetHome(absl::string_view session_id, const std::optional<SessionHome>& expected,
                               const std::optional<SessionHome>& home) override {
    if (!IsId(session_id)) return SessionNotFound(session_id);
    bool changed = false;
    SLUICE_RETURN_IF_ERROR(pool_->Transact([&](PgConnection& db, bool repeated) -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(
          PgRows rows, db.Run(SLUICE_PG_SESSION "WHERE id = $1 FOR UPDATE", PgParams().Text(session_id)));
      if (rows.size() == 0) return SessionNotFound(session_id);
      SLUICE_ASSIGN_OR_RETURN(Session session, SessionAt(rows, 0));
      changed = session.home == expected || (repeated && session.home == home);
      if (!changed || session.home == home) return absl::OkStatus();
      PgParams params = PgParams().Text(session_id);
      if (home.has_value()) {
        params.Text(home->worker).Text(home->incarnation);
      } else {
        params.Null().Null();
      }
      return db
          .Run("UPDATE sluice_sessions SET home_worker = $2, home_incarnation = $3 WHERE id = $1", params)
          .status();
    }));
    return changed;
  }

  absl::StatusOr<std::vector<Session>> Idle(int64_t updated_before_unix_ms, int limit) override {
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        pool_->Query(SLUICE_PG_SESSION "WHERE updated_unix_ms < $1 ORDER BY updated_unix_ms, id LIMIT $2",
                     PgParams().Int(updated_before_unix_ms).Int(limit)));
    return SessionsOf(rows);
  }

  absl::StatusOr<std::optional<std::vector<std::string>>> DeleteIdle(
      absl::string_view session_id, int64_t updated_before_unix_ms) override {
    std::optional<std::vector<std::string>> dropped;
    if (!IsId(session_id)) return dropped;
    SLUICE_RETURN_IF_ERROR(pool_->Transact([&](PgConnection& db, bool) -> absl::Status {
      dropped.reset();
      SLUICE_ASSIGN_OR_RETURN(PgRows rows,
                              db.Run(SLUICE_PG_SESSION "WHERE id = $1 AND updated_unix_ms < $2 FOR UPDATE",
                                     PgParams().Text(session_id).Int(updated_before_unix_ms)));
      if (rows.size() == 0) return absl::OkStatus();
      SLUICE_ASSIGN_OR_RETURN(Session session, SessionAt(rows, 0));
      return Erase(db, session, &dropped.emplace());
    }));
    return dropped;
  }

  absl::StatusOr<SessionTotals> Totals() override {
    SLUICE_ASSIGN_OR_RETURN(PgRows rows, pool_->Query("SELECT coalesce(sum(sessions), 0)::bigint,"
                                                      " coalesce(sum(bytes), 0)::bigint FROM sluice_owners"));
    return SessionTotals{rows.IntAt(0, 0), rows.IntAt(0, 1)};
  }

 private:
  // The methods below run inside the caller's transaction.

  // And locks it.
  static absl::StatusOr<Session> Owned(PgConnection& db, absl::string_view owner,
                                       absl::string_view session_id) {
    if (!IsId(session_id)) return SessionNotFound(session_id);
    SLUICE_ASSIGN_OR_RETURN(PgRows rows, db.Run(SLUICE_PG_SESSION "WHERE id = $1 AND owner = $2 FOR UPDATE",
                                                PgParams().Text(session_id).Text(owner)));
    if (rows.size() == 0) return SessionNotFound(session_id);
    return SessionAt(rows, 0);
  }

  // How many sessions the owner has.
  static absl::StatusOr<int64_t> LockOwner(PgConnection& db, absl::string_view owner) {
    SLUICE_RETURN_IF_ERROR(
        db.Run("INSERT INTO sluice_owners VALUES ($1, 0, 0) ON CONFLICT (owner) DO NOTHING",
               PgParams().Text(owner))
            .status());
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        db.Run("SELECT sessions FROM sluice_owners WHERE owner = $1 FOR UPDATE", PgParams().Text(owner)));
    return rows.size() == 1 ? rows.IntAt(0, 0) : 0;
  }

  static absl::Status CountFor(PgConnection& db, absl::string_view owner, int64_t sessions, int64_t bytes) {
    return db
        .Run("UPDATE sluice_owners SET sessions = sessions + $2, bytes = bytes + $3 WHERE owner = $1",
             PgParams().Text(owner).Int(sessions).Int(bytes))
        .status();
  }

  absl::Status Insert(PgConnection& db, const Session& session, bool repeated) const {
    SLUICE_ASSIGN_OR_RETURN(int64_t sessions, LockOwner(db, session.owner));
    if (repeated) {
      SLUICE_ASSIGN_OR_RETURN(
          PgRows known, db.Run("SELECT id FROM sluice_sessions WHERE id = $1", PgParams().Text(session.id)));
      if (known.size() == 1) return absl::OkStatus();
    }
    if (sessions >= limits_.max_sessions_per_owner) {
      return TooManySessions(session.owner, limits_.max_sessions_per_owner);
    }
    SLUICE_RETURN_IF_ERROR(
        db.Run("INSERT INTO sluice_sessions VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
               SessionParams(session))
            .status());
    return CountFor(db, session.owner, 1, 0);
  }

  // position: of the turn; bytes: what it counts.
  static absl::Status InsertTurn(PgConnection& db, absl::string_view session_id, absl::string_view parent_id,
                                 int64_t position, const Turn& turn, int64_t* bytes) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> before, IdsUpTo(db, parent_id));
    const StoredPrompt prompt = StorePrompt(before, turn.prompt_ids);
    *bytes = TurnBytes(turn, prompt.shared);
    PgParams params;
    params.Text(turn.id).Text(session_id).Id(parent_id).Int(position);
    params.Text(EncodeMessages(turn.messages)).Text(turn.reply).Text(turn.finish_reason);
    params.Int(turn.created_unix_ms).Int(prompt.shared).Text(prompt.rest).Text(EncodeIds(turn.emitted_ids));
    return db
        .Run("INSERT INTO sluice_turns VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
             params.Int(*bytes))
        .status();
  }

  // The turn's prompt and emitted ids; none for an empty id. Reads back to a turn that shares nothing.
  static absl::StatusOr<std::vector<int32_t>> IdsUpTo(PgConnection& db, absl::string_view turn_id) {
    std::vector<int32_t> ids;
    if (turn_id.empty()) return ids;
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        db.Run("WITH RECURSIVE t AS (SELECT * FROM sluice_turns WHERE id = $1"
               " UNION ALL SELECT turns.* FROM t JOIN sluice_turns turns ON turns.id = t.parent_id"
               " WHERE t.shared_ids > 0)"
               " SELECT t.shared_ids, t.prompt_ids, t.emitted_ids FROM t ORDER BY t.position",
               PgParams().Text(turn_id)));
    for (int row = 0; row < rows.size(); ++row) {
      SLUICE_ASSIGN_OR_RETURN(ids, RestorePrompt(ids, rows.IntAt(row, 0), rows.TextAt(row, 1)));
      const std::vector<int32_t> emitted = DecodeIds(rows.TextAt(row, 2));
      ids.insert(ids.end(), emitted.begin(), emitted.end());
    }
    return ids;
  }

  // NotFound: the turn is not on the session's path.
  static absl::Status MoveBack(PgConnection& db, absl::string_view turn_id, Session* session) {
    if (!IsId(turn_id)) return TurnNotOnPath(turn_id, session->id);
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        db.Run("WITH RECURSIVE t AS (SELECT id, parent_id, position FROM sluice_turns WHERE id = $1"
               " UNION ALL SELECT turns.id, turns.parent_id, turns.position"
               " FROM t JOIN sluice_turns turns ON turns.id = t.parent_id WHERE t.id <> $2)"
               " SELECT position FROM t WHERE id = $2",
               PgParams().Id(session->head_turn_id).Text(turn_id)));
    if (rows.size() == 0) return TurnNotOnPath(turn_id, session->id);
    session->head_turn_id = std::string(turn_id);
    session->turns = static_cast<int>(rows.IntAt(0, 0)) + 1;
    return absl::OkStatus();
  }

  static absl::Status Erase(PgConnection& db, const Session& session, std::vector<std::string>* dropped) {
    SLUICE_RETURN_IF_ERROR(LockOwner(db, session.owner).status());
    SLUICE_RETURN_IF_ERROR(
        db.Run("DELETE FROM sluice_sessions WHERE id = $1", PgParams().Text(session.id)).status());
    SLUICE_RETURN_IF_ERROR(Drop(db, session.owner, session.head_turn_id, dropped));
    return CountFor(db, session.owner, -1, 0);
  }

  // The turn that nobody holds and those before it that nobody else holds; their ids, first to last. The
  // owner is locked.
  static absl::Status Drop(PgConnection& db, absl::string_view owner, absl::string_view turn_id,
                           std::vector<std::string>* dropped) {
    dropped->clear();
    SLUICE_ASSIGN_OR_RETURN(
        PgRows rows,
        db.Run("WITH RECURSIVE t AS ("
               " SELECT id, parent_id FROM sluice_turns WHERE id = $1"
               " AND NOT EXISTS (SELECT 1 FROM sluice_turns child WHERE child.parent_id = sluice_turns.id)"
               " AND NOT EXISTS (SELECT 1 FROM sluice_sessions s WHERE s.head_turn_id = sluice_turns.id)"
               " UNION ALL SELECT turns.id, turns.parent_id FROM t JOIN sluice_turns turns ON turns.id = "
               "t.parent_id"
               " AND NOT EXISTS (SELECT 1 FROM sluice_turns child"
               " WHERE child.parent_id = turns.id AND child.id <> t.id)"
               " AND NOT EXISTS (SELECT 1 FROM sluice_sessions s WHERE s.head_turn_id = turns.id)),"
               " gone AS (DELETE FROM sluice_turns USING t WHERE sluice_turns.id = t.id"
               " RETURNING sluice_turns.id, sluice_turns.position, sluice_turns.bytes)"
               " SELECT id, bytes FROM gone ORDER BY position",
               PgParams().Id(turn_id)));
    int64_t bytes = 0;
    for (int row = 0; row < rows.size(); ++row) {
      dropped->push_back(rows.TextAt(row, 0));
      bytes += rows.IntAt(row, 1);
    }
    return CountFor(db, owner, 0, -bytes);
  }

  const std::unique_ptr<PgPool> pool_;
  const SessionLimits limits_;
};

// The password stays out of it.
absl::StatusOr<std::string> NameOf(const std::string& uri) {
  char* error = nullptr;
  PQconninfoOption* options = PQconninfoParse(uri.c_str(), &error);
  if (options == nullptr) {
    const std::string why =
        error == nullptr ? "cannot be read" : absl::StrReplaceAll(error, {{uri, "(not shown)"}});
    PQfreemem(error);
    return absl::InvalidArgumentError(absl::StrCat("sessions: the PostgreSQL address: ", why));
  }
  std::string host, port, database;
  for (const PQconninfoOption* option = options; option->keyword != nullptr; ++option) {
    const std::string value = option->val == nullptr ? "" : option->val;
    if (absl::string_view(option->keyword) == "host") host = value;
    if (absl::string_view(option->keyword) == "port") port = value;
    if (absl::string_view(option->keyword) == "dbname") database = value;
  }
  PQconninfoFree(options);
  return absl::StrCat("PostgreSQL ", host, port.empty() ? "" : ":", port, "/", database);
}

}  // namespace

bool IsPostgresUri(absl::string_view name) {
  return absl::StartsWith(name, "postgresql://") || absl::StartsWith(name, "postgres://");
}

absl::StatusOr<std::unique_ptr<SessionStore>> OpenPostgresStore(const PostgresOptions& options,
                                                                const SessionLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(std::string name, NameOf(options.uri));
  auto pool = std::make_unique<PgPool>(options.uri, std::move(name), options.timeout);
  SLUICE_RETURN_IF_ERROR(pool->Transact([](PgConnection& db, bool) { return PreparePgSchema(&db); }));
  return std::make_unique<PostgresStore>(std::move(pool), limits);
}

}  // namespace sluice
