#include "common/session/sqlite_schema.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int64_t kSchemaVersion = 3;

// A turn row belongs to no session: it lives while a child turn or a session's head refers to it. Its prompt
// is the first shared_ids ids of its parent's prompt and emitted ids, then prompt_ids (turn_ids.h).
constexpr const char* kTables[] = {
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE turns ("
    " id TEXT NOT NULL PRIMARY KEY,"
    " session_id TEXT NOT NULL,"
    " parent_id TEXT REFERENCES turns(id),"
    " position INTEGER NOT NULL,"
    " reply TEXT NOT NULL,"
    " prompt_ids BLOB NOT NULL,"
    " emitted_ids BLOB NOT NULL,"
    " finish_reason TEXT NOT NULL,"
    " created_unix_ms INTEGER NOT NULL,"
    " shared_ids INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL)",  // TurnBytes
    "CREATE INDEX turns_by_parent ON turns(parent_id)",
    "CREATE TABLE turn_messages ("
    " turn_id TEXT NOT NULL REFERENCES turns(id) ON DELETE CASCADE,"
    " position INTEGER NOT NULL,"
    " role TEXT NOT NULL,"
    " content TEXT NOT NULL,"
    " PRIMARY KEY (turn_id, position))",
    "CREATE TABLE sessions ("
    " id TEXT NOT NULL PRIMARY KEY,"
    " owner TEXT NOT NULL,"
    " model TEXT NOT NULL,"
    " created_unix_ms INTEGER NOT NULL,"
    " updated_unix_ms INTEGER NOT NULL,"
    " head_turn_id TEXT REFERENCES turns(id),"
    " home_worker TEXT,"
    " home_incarnation TEXT,"
    " compression_json TEXT NOT NULL)",
    "CREATE INDEX sessions_by_owner ON sessions(owner, created_unix_ms, id)",
    "CREATE INDEX sessions_by_head ON sessions(head_turn_id)",
    "CREATE INDEX sessions_by_update ON sessions(updated_unix_ms, id)",
    "CREATE TABLE session_metadata ("
    " session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,"
    " key TEXT NOT NULL,"
    " value TEXT NOT NULL,"
    " PRIMARY KEY (session_id, key)) WITHOUT ROWID",
    // The sum of an owner's turns, so that a quota costs no scan.
    "CREATE TABLE owners ("
    " owner TEXT NOT NULL PRIMARY KEY,"
    " bytes INTEGER NOT NULL) WITHOUT ROWID",
};

// Those from a version on lead to the next one, in order.
struct Migration {
  int64_t from;
  const char* sql;
};
constexpr Migration kMigrations[] = {
    // Version 1 held each prompt whole: it shares nothing.
    {1, "ALTER TABLE turns ADD COLUMN shared_ids INTEGER NOT NULL DEFAULT 0"},
    // Version 2 counted no bytes.
    {2, "ALTER TABLE turns ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0"},
    {2,
     "UPDATE turns SET bytes = length(CAST(reply AS BLOB)) + length(prompt_ids) + length(emitted_ids)"
     " + (SELECT ifnull(sum(length(CAST(role AS BLOB)) + length(CAST(content AS BLOB))), 0)"
     " FROM turn_messages WHERE turn_id = turns.id)"},
    {2, "CREATE INDEX sessions_by_update ON sessions(updated_unix_ms, id)"},
    {2, "CREATE TABLE owners (owner TEXT NOT NULL PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID"},
    {2,
     "INSERT INTO owners WITH RECURSIVE held(owner, turn_id) AS ("
     " SELECT owner, head_turn_id FROM sessions WHERE head_turn_id IS NOT NULL"
     " UNION SELECT held.owner, turns.parent_id FROM held JOIN turns ON turns.id = held.turn_id"
     " WHERE turns.parent_id IS NOT NULL)"
     " SELECT held.owner, sum(turns.bytes) FROM held JOIN turns ON turns.id = held.turn_id GROUP BY "
     "held.owner"},
};

absl::Status SetVersion(SqliteDb* db, absl::string_view sql) {
  SqliteQuery query(db, sql);
  return query.Int(kSchemaVersion).Run();
}

absl::StatusOr<int64_t> FirstInt(SqliteDb* db, absl::string_view sql) {
  SqliteQuery query(db, sql);
  SLUICE_ASSIGN_OR_RETURN(bool row, query.Next());
  return row ? query.IntAt(0) : 0;
}

}  // namespace

absl::Status PrepareSessionSchema(SqliteDb* db) {
  SqliteTransaction transaction(db);
  SLUICE_RETURN_IF_ERROR(transaction.BeginWrite());
  SLUICE_ASSIGN_OR_RETURN(int64_t n_objects, FirstInt(db, "SELECT count(*) FROM sqlite_master"));
  if (n_objects == 0) {
    for (const char* table : kTables) SLUICE_RETURN_IF_ERROR(db->Run(table));
    SLUICE_RETURN_IF_ERROR(SetVersion(db, "INSERT INTO schema_version VALUES (?)"));
    return transaction.Commit();
  }
  SLUICE_ASSIGN_OR_RETURN(
      int64_t known,
      FirstInt(db, "SELECT count(*) FROM sqlite_master WHERE type='table' AND name='schema_version'"));
  if (known == 0) {
    return absl::DataLossError(
        absl::StrCat("session database ", db->path(), ": it holds other tables; name another file"));
  }
  SLUICE_ASSIGN_OR_RETURN(int64_t version, FirstInt(db, "SELECT version FROM schema_version"));
  if (version < 1 || version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("session database ", db->path(), ": schema version ",
                                                      version, ", this program knows 1 to ", kSchemaVersion,
                                                      "; run the program that wrote it"));
  }
  for (const Migration& migration : kMigrations) {
    if (migration.from >= version) SLUICE_RETURN_IF_ERROR(db->Run(migration.sql));
  }
  if (version < kSchemaVersion) {
    SLUICE_RETURN_IF_ERROR(SetVersion(db, "UPDATE schema_version SET version = ?"));
  }
  return transaction.Commit();
}

}  // namespace sluice
