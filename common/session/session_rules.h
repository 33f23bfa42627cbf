// Role: what every store refuses in the same words, and the page token they share.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/session/session_store.h"

namespace sluice {

absl::Status CheckNewSession(const NewSession& session);
absl::Status CheckTurn(const Turn& turn);
absl::Status CheckPageSize(int page_size);

// Where a page ends. Sessions are listed by (created_unix_ms, id), both descending; the token names the
// caller's own last session and so tells nothing about others.
struct PageCursor {
  int64_t created_unix_ms = INT64_MAX;
  std::string session_id;
};
std::string EncodePageToken(const Session& last);
absl::StatusOr<PageCursor> DecodePageToken(absl::string_view token);  // "" is the cursor before the newest

absl::Status SessionNotFound(absl::string_view session_id);
absl::Status TurnNotOnPath(absl::string_view turn_id, absl::string_view session_id);
absl::Status TurnExists(absl::string_view turn_id);
absl::Status StaleParent(absl::string_view expected, absl::string_view head);
absl::Status TooManySessions(int limit);

}  // namespace sluice
