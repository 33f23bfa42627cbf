// Where libpq is not installed.
#include "absl/strings/match.h"
#include "common/session/postgres_store.h"

namespace sluice {

bool IsPostgresUri(absl::string_view name) {
  return absl::StartsWith(name, "postgresql://") || absl::StartsWith(name, "postgres://");
}

absl::StatusOr<std::unique_ptr<SessionStore>> OpenPostgresStore(const PostgresOptions&,
                                                                const SessionLimits&) {
  return absl::UnimplementedError(
      "sessions: this build has no PostgreSQL; install libpq-dev and build again");
}

}  // namespace sluice
