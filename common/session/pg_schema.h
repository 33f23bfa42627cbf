// Role: the tables of the session store in PostgreSQL. Why they differ from SQLite's: a turn is one row, so
// that a path is one statement; counts per owner are one row, whose lock orders what several routers do.
// Threads: one caller.
#pragma once

#include "absl/status/status.h"
#include "common/session/pg_connection.h"

namespace sluice {

// Inside the caller's transaction: makes the tables where there are none, whoever else does so now.
// FailedPrecondition: they are of another version.
absl::Status PreparePgSchema(PgConnection* db);

}  // namespace sluice
