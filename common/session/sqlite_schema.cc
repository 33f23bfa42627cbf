#include "common/session/sqlite_schema.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int64_t kSchemaVersion = 1;

// A turn row belongs to no session: it lives while a child turn or a session's head refers to it. Token ids
// are little-endian int32.
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
    " created_unix_ms INTEGER NOT NULL)",
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
    "CREATE TABLE session_metadata ("
    " session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,"
    " key TEXT NOT NULL,"
    " value TEXT NOT NULL,"
    " PRIMARY KEY (session_id, key)) WITHOUT ROWID",
};

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
    SqliteQuery insert(db, "INSERT INTO schema_version VALUES (?)");
    SLUICE_RETURN_IF_ERROR(insert.Int(kSchemaVersion).Run());
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
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("session database ", db->path(), ": schema version ",
                                                      version, ", this program knows ", kSchemaVersion,
                                                      "; run the program that wrote it"));
  }
  return transaction.Commit();
}

}  // namespace sluice
