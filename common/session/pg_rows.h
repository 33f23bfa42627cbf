// Role: sessions and turns as rows of PostgreSQL. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/session/pg_connection.h"
#include "common/session/session_store.h"

namespace sluice {

// What SessionAt reads; a literal, so that statements are put together by the compiler.
#define SLUICE_PG_SESSION                                                                        \
  "SELECT id, owner, model, created_unix_ms, updated_unix_ms, head_turn_id, turns, home_worker," \
  " home_incarnation, metadata, compression_json FROM sluice_sessions "

absl::StatusOr<Session> SessionAt(const PgRows& rows, int row);
absl::StatusOr<std::vector<Session>> SessionsOf(const PgRows& rows);
PgParams SessionParams(const Session& session);  // in the table's order

// What TurnAt reads, and after it IdsAt.
#define SLUICE_PG_TURN                                                                 \
  "t.id, t.session_id, t.parent_id, t.position, t.messages, t.reply, t.finish_reason," \
  " t.created_unix_ms, t.shared_ids, t.prompt_ids, t.emitted_ids"

// Turns of a path from one that shares nothing, or from the first, with their ids put together.
absl::StatusOr<std::vector<Turn>> TurnsOf(const PgRows& rows);

std::string EncodeMessages(const std::vector<TurnMessage>& messages);

}  // namespace sluice
