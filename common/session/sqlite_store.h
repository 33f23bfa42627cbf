// Role: sessions of one router in one SQLite file; a restart loses none.
// Why SQLite: the embedded default needs no other process. Commits are synchronous (WAL, synchronous=FULL),
// each operation is one transaction, so a crash at any point leaves the state before it or after it. Threads:
// any; one connection behind one lock. Another process on the same file is waited for (5 s).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/session/session_store.h"

namespace sluice {

// Creates the file when absent. Every Status names the file: DataLoss for a corrupt one or not a session
// database, ResourceExhausted for a full disk, PermissionDenied where it cannot be read or written,
// FailedPrecondition for a newer schema, Unavailable while another process keeps it locked.
absl::StatusOr<std::unique_ptr<SessionStore>> OpenSqliteStore(const std::string& path,
                                                              const SessionLimits& limits);

}  // namespace sluice
