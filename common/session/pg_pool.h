// Role: transactions on PostgreSQL that outlive a restart of it: connections are kept, made again when they
// break, and what was undone is done again until a deadline. Threads: any; each transaction has a connection
// of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/session/pg_connection.h"

namespace sluice {

class PgPool {
 public:
  // uri: postgresql://... name: of the database in errors, without a password. timeout: of a transaction with
  // all its repetitions.
  PgPool(std::string uri, std::string name, absl::Duration timeout)
      : uri_(std::move(uri)), name_(std::move(name)), timeout_(timeout) {}

  // repeated: an earlier commit of the same body was sent, and whether it took place is not known.
  using Body = std::function<absl::Status(PgConnection& db, bool repeated)>;
  // Unavailable: no server did it in time. A body's own errors undo the transaction and come back as they
  // are.
  absl::Status Transact(const Body& body);

  // One statement that changes nothing.
  absl::StatusOr<PgRows> Query(const char* sql, const PgParams& params = {});

 private:
  using Attempt = std::function<absl::Status(PgConnection& db)>;
  absl::Status UntilDone(const Attempt& attempt);
  absl::StatusOr<std::unique_ptr<PgConnection>> Take(absl::Time deadline);
  void PutBack(std::unique_ptr<PgConnection> connection);

  const std::string uri_;
  const std::string name_;
  const absl::Duration timeout_;
  const SteadyClock clock_;
  Mutex mu_;
  std::vector<std::unique_ptr<PgConnection>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
