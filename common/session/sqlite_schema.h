// Role: the tables of the session database, and their version.
// Threads: none of its own.
#pragma once

#include "absl/status/status.h"
#include "common/session/sqlite_db.h"

namespace sluice {

// Creates the tables in an empty file, brings those of an earlier version up to this one. DataLoss: the file
// holds something else; FailedPrecondition: a newer schema.
absl::Status PrepareSessionSchema(SqliteDb* db);

}  // namespace sluice
