// Role: what every store refuses in the same words, how a session begins, the page token they share, and
// how a turn counts. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/session/session_store.h"

namespace sluice {

// 32 lower-case hex digits, as all ids of sessions and turns.
bool IsId(absl::string_view text);

// A session with an id of its own, not stored yet. InvalidArgument: too much metadata.
absl::StatusOr<Session> SessionOf(const NewSession& fresh);

absl::Status CheckTurn(const Turn& turn);
absl::Status CheckPageSize(int page_size);

// Against its owner's quota: text, and 4 bytes a token id but for the first `shared_ids` of its prompt, which
// are its parent's (turn_ids.h).
int64_t TurnBytes(const Turn& turn, int64_t shared_ids);

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
absl::Status TooManySessions(absl::string_view owner, int limit);
absl::Status TooManyBytes(absl::string_view owner, int64_t bytes, int64_t limit);

// What an owner has too much of, if that is why the status is ResourceExhausted; else empty. Payloads of this
// kind are for the process alone.
std::string QuotaSubjectOf(const absl::Status& status);

}  // namespace sluice
