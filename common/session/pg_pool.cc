#include "common/session/pg_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<PgConnection>> PgPool::Take(absl::Time deadline) {
  {
    MutexLock lock(&mu_);
    if (!free_.empty()) {
      std::unique_ptr<PgConnection> connection = std::move(free_.back());
      free_.pop_back();
      connection->SetDeadline(deadline);
      return connection;
    }
  }
  return PgConnection::Open(uri_, timeout_, &clock_, deadline);
}

void PgPool::PutBack(std::unique_ptr<PgConnection> connection) {
  std::vector<std::unique_ptr<PgConnection>> broken;  // closed outside the lock
  MutexLock lock(&mu_);
  if (connection->broken()) {
    broken.swap(free_);  // the server went: they broke with this one
  } else {
    free_.push_back(std::move(connection));
  }
}

absl::Status PgPool::UntilDone(const Attempt& attempt) {
  const absl::Time deadline = clock_.Now() + timeout_;
  for (absl::Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    absl::Status status;
    absl::StatusOr<std::unique_ptr<PgConnection>> connection = Take(deadline);
    if (connection.ok()) {
      status = attempt(**connection);
      PutBack(*std::move(connection));
    } else {
      status = connection.status();
    }
    const bool outage = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!outage) return status;
    if (absl::IsDeadlineExceeded(status) || clock_.Now() + pause >= deadline) {
      return absl::UnavailableError(absl::StrCat("sessions: ", name_, " did not do it within ",
                                                 absl::FormatDuration(timeout_), ": ", status.message()));
    }
    absl::SleepFor(pause);
  }
}

absl::Status PgPool::Transact(const Body& body) {
  bool committing = false;
  return UntilDone([&](PgConnection& db) {
    const bool repeated = committing;
    SLUICE_RETURN_IF_ERROR(db.Run("BEGIN").status());
    absl::Status status = body(db, repeated);
    if (status.ok()) {
      committing = true;
      return db.Run("COMMIT").status();
    }
    if (!db.broken()) db.Run("ROLLBACK").IgnoreError();
    return status;
  });
}

absl::StatusOr<PgRows> PgPool::Query(const char* sql, const PgParams& params) {
  std::optional<PgRows> rows;
  SLUICE_RETURN_IF_ERROR(UntilDone([&](PgConnection& db) {
    SLUICE_ASSIGN_OR_RETURN(PgRows result, db.Run(sql, params));
    rows = std::move(result);
    return absl::OkStatus();
  }));
  return *std::move(rows);
}

}  // namespace sluice
