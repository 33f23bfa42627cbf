// Role: one connection to PostgreSQL: statements with parameters, rows, and a deadline for each wait. Why it
// exists: libpq's own calls wait as long as the server likes. Threads: one caller at a time.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace sluice {

// $1, $2, ... in order.
class PgParams {
 public:
  PgParams& Text(absl::string_view text);  // of BYTEA columns, too: any bytes
  PgParams& Int(int64_t value);
  PgParams& Null();
  // Null where it is empty: an absent turn id, so that foreign keys hold.
  PgParams& Id(absl::string_view id) { return id.empty() ? Null() : Text(id); }

 private:
  friend class PgConnection;
  struct Value {
    std::string bytes;
    bool null = false, binary = false;
  };
  std::vector<Value> values_;
};

// What a statement returned. Columns are TEXT, BYTEA or BIGINT.
class PgRows {
 public:
  explicit PgRows(PGresult* result) : result_(result) {}
  int size() const { return PQntuples(result_.get()); }
  bool NullAt(int row, int column) const { return PQgetisnull(result_.get(), row, column) != 0; }
  std::string TextAt(int row, int column) const;  // "" where it is null
  int64_t IntAt(int row, int column) const;       // 0 where it is null
  const PGresult* get() const { return result_.get(); }

 private:
  struct Clear {
    void operator()(PGresult* result) const { PQclear(result); }
  };
  std::unique_ptr<PGresult, Clear> result_;
};

class PgConnection {
 public:
  // uri: postgresql://... timeout: statements and idle transactions end on the server, too, after so long.
  static absl::StatusOr<std::unique_ptr<PgConnection>> Open(const std::string& uri, absl::Duration timeout,
                                                            const Clock* clock, absl::Time deadline);

  // Of the waits from now on.
  void SetDeadline(absl::Time deadline) { deadline_ = deadline; }

  // Unavailable: the server went, is not ready, or undid the transaction for another's sake: the same again
  // may do. DeadlineExceeded: it did not answer. Others are the statement's fault.
  absl::StatusOr<PgRows> Run(const char* sql, const PgParams& params = {});

  // Of no use any more.
  bool broken() const { return broken_; }

 private:
  PgConnection(PGconn* connection, const Clock* clock, absl::Time deadline)
      : connection_(connection), clock_(clock), deadline_(deadline) {}
  absl::Status Connect();
  absl::Status Await(short events);  // of its socket
  absl::Status Flush();
  absl::StatusOr<PgRows> Receive();
  absl::Status Lost();
  absl::Status StatusOf(const PGresult* result);

  struct Finish {
    void operator()(PGconn* connection) const { PQfinish(connection); }
  };
  const std::unique_ptr<PGconn, Finish> connection_;
  const Clock* const clock_;
  absl::Time deadline_;
  bool broken_ = false;
};

}  // namespace sluice
