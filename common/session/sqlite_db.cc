#include "common/session/sqlite_db.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kBusyTimeoutMs = 5000;

absl::Status ToStatus(int code, int system_errno, const std::string& message) {
  if (system_errno == ENOSPC || system_errno == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; free space on its disk"));
  }
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat(message, "; free space on its disk"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(message, "; restore it from a backup or move it away"));
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(
          absl::StrCat(message, "; the file and its directory must be writable by this process"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(message, "; another process holds it"));
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

// SQLite would create it readable by all; its -wal and -shm files take the mode of this one. O_EXCL: opening
// and closing an existing file would drop the locks of this process's other connections to it.
absl::Status CreateIfAbsent(const std::string& path) {
  int fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    return absl::OkStatus();
  }
  int error = errno;
  if (error == EEXIST) return absl::OkStatus();
  return ToStatus(SQLITE_CANTOPEN, error,
                  absl::StrCat("session database ", path, ": create: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path) {
  // SQLite reads these as a database that is gone at exit.
  if (path.empty() || path[0] == ':') {
    return absl::InvalidArgumentError(absl::StrCat("session database '", path, "': want the path of a file"));
  }
  SLUICE_RETURN_IF_ERROR(CreateIfAbsent(path));
  sqlite3* handle = nullptr;
  int code = sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteDb> db(new SqliteDb(path, handle));
  if (code != SQLITE_OK) return db->Error(code, "open");
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  if (sqlite3_db_readonly(handle, "main") == 1) return db->Error(SQLITE_READONLY, "open");
  {
    SqliteQuery mode(db.get(), "PRAGMA journal_mode=WAL");
    SLUICE_ASSIGN_OR_RETURN(bool row, mode.Next());
    if (!row || mode.TextAt(0) != "wal") {
      return absl::FailedPreconditionError(
          absl::StrCat("session database ", path, ": its file system does not allow write-ahead logging"));
    }
  }
  SLUICE_RETURN_IF_ERROR(db->Run("PRAGMA synchronous=FULL"));
  SLUICE_RETURN_IF_ERROR(db->Run("PRAGMA foreign_keys=ON"));
  return db;
}

SqliteDb::~SqliteDb() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

absl::Status SqliteDb::Error(int code, absl::string_view doing) const {
  int system_errno = db_ == nullptr ? 0 : sqlite3_system_errno(db_);
  std::string message = absl::StrCat("session database ", path_, ": ", doing, ": ", sqlite3_errstr(code));
  // errmsg belongs to the last call; it adds something only when that call is the one that failed.
  if (db_ != nullptr && sqlite3_errcode(db_) == code &&
      strcmp(sqlite3_errmsg(db_), sqlite3_errstr(code)) != 0) {
    absl::StrAppend(&message, " (", sqlite3_errmsg(db_), ")");
  }
  int kind = code & 0xff;
  bool from_system = kind == SQLITE_IOERR || kind == SQLITE_CANTOPEN;
  if (from_system && system_errno != 0) absl::StrAppend(&message, ": ", std::strerror(system_errno));
  return ToStatus(code, from_system ? system_errno : 0, message);
}

absl::StatusOr<sqlite3_stmt*> SqliteDb::Prepared(absl::string_view sql) {
  auto [entry, fresh] = statements_.try_emplace(std::string(sql), nullptr);
  if (!fresh) return entry->second;
  int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                &entry->second, nullptr);
  if (code == SQLITE_OK) return entry->second;
  statements_.erase(entry);
  return Error(code, sql);
}

absl::Status SqliteDb::Run(absl::string_view sql) { return SqliteQuery(this, sql).Run(); }

SqliteQuery::SqliteQuery(SqliteDb* db, absl::string_view sql) : db_(db) {
  absl::StatusOr<sqlite3_stmt*> statement = db->Prepared(sql);
  if (statement.ok()) {
    statement_ = *statement;
  } else {
    status_ = statement.status();
  }
}

SqliteQuery::~SqliteQuery() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

void SqliteQuery::Note(int code, absl::string_view doing) {
  if (code != SQLITE_OK && status_.ok()) status_ = db_->Error(code, doing);
}

SqliteQuery& SqliteQuery::Text(absl::string_view value) {
  // A null data pointer would bind NULL.
  const char* bytes = value.data() == nullptr ? "" : value.data();
  if (status_.ok()) {
    Note(sqlite3_bind_text64(statement_, ++bound_, bytes, value.size(), SQLITE_STATIC, SQLITE_UTF8),
         "bind text");
  }
  return *this;
}

SqliteQuery& SqliteQuery::Blob(absl::string_view value) {
  const char* bytes = value.data() == nullptr ? "" : value.data();
  if (status_.ok()) {
    Note(sqlite3_bind_blob64(statement_, ++bound_, bytes, value.size(), SQLITE_STATIC), "bind blob");
  }
  return *this;
}

SqliteQuery& SqliteQuery::Int(int64_t value) {
  if (status_.ok()) Note(sqlite3_bind_int64(statement_, ++bound_, value), "bind integer");
  return *this;
}

SqliteQuery& SqliteQuery::Null() {
  if (status_.ok()) Note(sqlite3_bind_null(statement_, ++bound_), "bind null");
  return *this;
}

absl::StatusOr<bool> SqliteQuery::Next() {
  if (!status_.ok()) return status_;
  int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  status_ = db_->Error(code, sqlite3_sql(statement_));
  return status_;
}

absl::Status SqliteQuery::Run() { return Next().status(); }

std::string SqliteQuery::TextAt(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_, column);
  if (text == nullptr) return "";
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

absl::string_view SqliteQuery::BlobAt(int column) const {
  const void* blob = sqlite3_column_blob(statement_, column);
  return {static_cast<const char*>(blob), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

int64_t SqliteQuery::IntAt(int column) const { return sqlite3_column_int64(statement_, column); }

bool SqliteQuery::NullAt(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

SqliteTransaction::~SqliteTransaction() {
  // Some errors have rolled back already. A rollback that fails leaves nothing to do: the journal has the old
  // state.
  if (sqlite3_get_autocommit(db_->db_) == 0) db_->Run("ROLLBACK").IgnoreError();
}

absl::Status SqliteTransaction::BeginRead() { return db_->Run("BEGIN"); }
absl::Status SqliteTransaction::BeginWrite() { return db_->Run("BEGIN IMMEDIATE"); }
absl::Status SqliteTransaction::Commit() { return db_->Run("COMMIT"); }

}  // namespace sluice
