// Role: one SQLite connection: prepared statements by their text, transactions, and its codes as
// absl::Status. Why it exists: the store reads as SQL and values; every error names the file. Threads: one at
// a time; the owner holds a lock around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace sluice {

class SqliteDb;

// One run of a prepared statement: bind in order, step, read columns from 0. Resets the statement when it
// goes. Errors stick: the first one is what Next and Run return.
class SqliteQuery {
 public:
  SqliteQuery(SqliteDb* db, absl::string_view sql);
  ~SqliteQuery();
  SqliteQuery(const SqliteQuery&) = delete;
  SqliteQuery& operator=(const SqliteQuery&) = delete;

  // The bytes are borrowed until the query goes.
  SqliteQuery& Text(absl::string_view value);
  SqliteQuery& Blob(absl::string_view value);
  SqliteQuery& Int(int64_t value);
  SqliteQuery& Null();

  absl::StatusOr<bool> Next();  // false: no further row
  absl::Status Run();           // a statement without rows

  std::string TextAt(int column) const;
  absl::string_view BlobAt(int column) const;  // valid until the next step
  int64_t IntAt(int column) const;
  bool NullAt(int column) const;

 private:
  void Note(int code, absl::string_view doing);

  SqliteDb* const db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  absl::Status status_;
};

class SqliteDb {
 public:
  // Creates the file, readable by its owner only, when absent. WAL, synchronous=FULL, foreign keys on.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  absl::Status Run(absl::string_view sql);  // one statement without values or rows
  const std::string& path() const { return path_; }

 private:
  friend class SqliteQuery;
  friend class SqliteTransaction;
  SqliteDb(const std::string& path, sqlite3* db) : path_(path), db_(db) {}
  absl::Status Error(int code, absl::string_view doing) const;
  absl::StatusOr<sqlite3_stmt*> Prepared(absl::string_view sql);

  const std::string path_;
  sqlite3* const db_;
  absl::flat_hash_map<std::string, sqlite3_stmt*> statements_;
};

// Rolls back unless Commit returned OK.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDb* db) : db_(db) {}
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  absl::Status BeginRead();   // one view of the data for several queries
  absl::Status BeginWrite();  // takes the write lock now, so that what it reads stays true until Commit
  absl::Status Commit();

 private:
  SqliteDb* const db_;
};

}  // namespace sluice
