// Role: what the router remembers of conversations. A session is a path in a tree of turns; the messages and
// the exact token ids are the truth, KV on workers is only a cache of them. Why abstract: one router keeps
// its sessions in memory or in SQLite, many routers share a database; one conformance suite runs over every
// implementation. Threads: every method may be called from any thread and is atomic; it may block on the
// disk, so it is never called from an engine loop. The store reads no clock: times are the caller's, unix
// milliseconds.
//
// Turns are shared by reference: a fork's path leads through the same turns as its source's, and a turn is
// dropped when no session's path holds it any more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The prefill worker that holds a session's history: another incarnation has lost it.
struct SessionHome {
  std::string worker;
  std::string incarnation;
  friend bool operator==(const SessionHome&, const SessionHome&) = default;
};

struct Session {
  std::string id;  // 32 hex digits
  std::string owner;
  std::string model;
  int64_t created_unix_ms = 0;
  int64_t updated_unix_ms = 0;  // the last commit, or creation
  std::string head_turn_id;     // empty before the first turn
  int turns = 0;                // on the path to the head
  std::map<std::string, std::string> metadata;
  std::optional<SessionHome> home;
  std::string compression_json;  // opaque: what later turns need of earlier ones; empty before the first turn
  friend bool operator==(const Session&, const Session&) = default;
};

struct TurnMessage {
  std::string role;
  std::string content;
  friend bool operator==(const TurnMessage&, const TurnMessage&) = default;
};

struct Turn {
  std::string id;                     // 32 hex digits, made by the caller
  std::string session_id;             // set by the store: the session that committed it, which may be gone
  std::string parent_turn_id;         // set by the store; empty for a first turn
  int index = 0;                      // set by the store: 0 for a first turn
  std::vector<TurnMessage> messages;  // new in this turn
  std::string reply;
  std::vector<int32_t> prompt_ids;   // the whole prompt of this turn
  std::vector<int32_t> emitted_ids;  // trimmed at the stop
  std::string finish_reason;
  int64_t created_unix_ms = 0;
  friend bool operator==(const Turn&, const Turn&) = default;
};

struct NewSession {
  std::string owner;
  std::string model;
  std::map<std::string, std::string> metadata;  // at most kMaxSessionMetadata entries
  int64_t created_unix_ms = 0;
};

struct SessionPage {
  std::vector<Session> sessions;
  std::string next_page_token;  // empty: this was the last page
};

// Turns dropped with a change come first to last.
struct Truncated {
  Session session;
  std::vector<std::string> dropped_turn_ids;
};

// bytes: of turns, each once: text, and token ids that are not its parent's (TurnBytes in session_rules.h).
struct SessionLimits {
  int max_sessions_per_owner = 10000;
  int64_t max_bytes_per_owner = int64_t{16} << 30;
};
struct SessionTotals {
  int64_t sessions = 0;
  int64_t bytes = 0;
  friend bool operator==(const SessionTotals&, const SessionTotals&) = default;
};

inline constexpr int kMaxSessionMetadata = 16;
inline constexpr int kMaxSessionPage = 1000;

class SessionStore {
 public:
  virtual ~SessionStore() = default;

  // ResourceExhausted: the owner is at SessionLimits::max_sessions_per_owner (a fork counts too).
  virtual absl::StatusOr<Session> Create(const NewSession& session) = 0;

  // NotFound also when the session is another owner's: ids do not leak. Same for Delete, Fork and Truncate.
  virtual absl::StatusOr<Session> Get(absl::string_view owner, absl::string_view session_id) = 0;

  // Newest first. page_token: empty, or next_page_token of the page before; page_size in [1,
  // kMaxSessionPage].
  virtual absl::StatusOr<SessionPage> List(absl::string_view owner, absl::string_view page_token,
                                           int page_size) = 0;

  // The session and every turn that no other session's path holds; the ids of these, first to last.
  virtual absl::StatusOr<std::vector<std::string>> Delete(absl::string_view owner,
                                                          absl::string_view session_id) = 0;

  // A new session of the same owner whose head is `turn_id`, or the source's head when empty. NotFound: the
  // turn is not on the source's path. The fork takes the source's home, metadata and
  // compression_json.
  virtual absl::StatusOr<Session> Fork(absl::string_view owner, absl::string_view session_id,
                                       absl::string_view turn_id, int64_t created_unix_ms) = 0;

  // Makes `turn_id` the head and drops the turns after it that no other session's path holds. NotFound: the
  // turn is not on the session's path. compression_json stays.
  virtual absl::StatusOr<Truncated> Truncate(absl::string_view owner, absl::string_view session_id,
                                             absl::string_view turn_id, int64_t updated_unix_ms) = 0;

  // ResourceExhausted: the owner's turns are at SessionLimits::max_bytes_per_owner. To be asked before a turn
  // is computed: CommitTurn keeps what was computed, so an owner goes over by the turns under way.
  virtual absl::Status CheckRoom(absl::string_view owner) = 0;

  // The methods below take no owner: the caller has passed Get.

  // Makes `turn` the session's head if the head still is `expected_parent_turn_id`; else Aborted, and nothing
  // changed. A compression_json that is not empty replaces the session's in the same step.
  virtual absl::Status CommitTurn(absl::string_view session_id, absl::string_view expected_parent_turn_id,
                                  const Turn& turn, absl::string_view compression_json) = 0;

  // Turns from the first to `turn_id`, or to the head when empty. NotFound: not on this session's path.
  virtual absl::StatusOr<std::vector<Turn>> Path(absl::string_view session_id, absl::string_view turn_id) = 0;

  // Compare and set; false when the home is not `expected`.
  virtual absl::StatusOr<bool> SetHome(absl::string_view session_id,
                                       const std::optional<SessionHome>& expected,
                                       const std::optional<SessionHome>& home) = 0;

  // The methods below are over all owners.

  // At most `limit` sessions whose updated_unix_ms is earlier, the longest idle first.
  virtual absl::StatusOr<std::vector<Session>> Idle(int64_t updated_before_unix_ms, int limit) = 0;
  // As Delete, if updated_unix_ms still is earlier; nullopt: it is not, or the session is gone.
  virtual absl::StatusOr<std::optional<std::vector<std::string>>> DeleteIdle(
      absl::string_view session_id, int64_t updated_before_unix_ms) = 0;

  virtual absl::StatusOr<SessionTotals> Totals() = 0;
};

}  // namespace sluice
