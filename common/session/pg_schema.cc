#include "common/session/pg_schema.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int64_t kVersion = 1;

// Text that clients send may hold any character, also the one that TEXT cannot: it is BYTEA. messages,
// metadata: JSON (pg_rows.h); ids: turn_ids.h. A turn lives while a child turn or a session's head refers to
// it.
constexpr const char* kTables[] = {
    "CREATE TABLE sluice_schema (version BIGINT NOT NULL)",
    "CREATE TABLE sluice_owners ("
    " owner TEXT PRIMARY KEY,"
    " sessions BIGINT NOT NULL,"
    " bytes BIGINT NOT NULL)",
    "CREATE TABLE sluice_turns ("
    " id TEXT COLLATE \"C\" PRIMARY KEY,"
    " session_id TEXT NOT NULL,"
    " parent_id TEXT COLLATE \"C\" REFERENCES sluice_turns (id),"
    " position BIGINT NOT NULL,"
    " messages BYTEA NOT NULL,"
    " reply BYTEA NOT NULL,"
    " finish_reason TEXT NOT NULL,"
    " created_unix_ms BIGINT NOT NULL,"
    " shared_ids BIGINT NOT NULL,"
    " prompt_ids BYTEA NOT NULL,"
    " emitted_ids BYTEA NOT NULL,"
    " bytes BIGINT NOT NULL)",
    "CREATE INDEX sluice_turns_by_parent ON sluice_turns (parent_id)",
    "CREATE TABLE sluice_sessions ("
    " id TEXT COLLATE \"C\" PRIMARY KEY,"
    " owner TEXT NOT NULL,"
    " model TEXT NOT NULL,"
    " created_unix_ms BIGINT NOT NULL,"
    " updated_unix_ms BIGINT NOT NULL,"
    " head_turn_id TEXT COLLATE \"C\" REFERENCES sluice_turns (id),"
    " turns BIGINT NOT NULL,"
    " home_worker TEXT,"
    " home_incarnation TEXT,"
    " metadata BYTEA NOT NULL,"
    " compression_json TEXT NOT NULL)",
    "CREATE INDEX sluice_sessions_by_owner ON sluice_sessions (owner, created_unix_ms, id)",
    "CREATE INDEX sluice_sessions_by_head ON sluice_sessions (head_turn_id)",
    "CREATE INDEX sluice_sessions_by_update ON sluice_sessions (updated_unix_ms, id)",
};

}  // namespace

absl::Status PreparePgSchema(PgConnection* db) {
  // Any number that nobody else locks; until the end of the transaction.
  SLUICE_RETURN_IF_ERROR(db->Run("SELECT pg_advisory_xact_lock(7308332045)").status());
  SLUICE_ASSIGN_OR_RETURN(PgRows known, db->Run("SELECT to_regclass('sluice_schema')::text"));
  if (known.NullAt(0, 0)) {
    for (const char* table : kTables) SLUICE_RETURN_IF_ERROR(db->Run(table).status());
    return db->Run("INSERT INTO sluice_schema VALUES ($1)", PgParams().Int(kVersion)).status();
  }
  SLUICE_ASSIGN_OR_RETURN(PgRows version, db->Run("SELECT version FROM sluice_schema"));
  if (version.size() == 1 && version.IntAt(0, 0) == kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "sessions: the tables are of version ", version.size() == 1 ? version.IntAt(0, 0) : 0,
      ", this program knows ", kVersion, "; run the program that made them, or name another database"));
}

}  // namespace sluice
