// Role: sessions in PostgreSQL, for many routers over one store. Threads: any; a call blocks its thread until
// the server has answered, or for PostgresOptions::timeout at most: for the router's work pool.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/session/session_store.h"

namespace sluice {

struct PostgresOptions {
  std::string uri;                             // postgresql://user@host:port/database, as libpq takes it
  absl::Duration timeout = absl::Seconds(10);  // of one call, with reconnections and repetitions
};

// True: what --sessions-db names is a PostgreSQL database.
bool IsPostgresUri(absl::string_view name);

// Makes the tables (sluice_*) where there are none. Errors name the database, without a password.
// Unimplemented: this build has no libpq.
absl::StatusOr<std::unique_ptr<SessionStore>> OpenPostgresStore(const PostgresOptions& options,
                                                                const SessionLimits& limits);

}  // namespace sluice
