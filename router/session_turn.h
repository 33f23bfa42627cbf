// Role: what a request has to do with its session: enters it, so that turns come one at a time, reads it,
// remembers the worker that holds its history, commits the turn. Why it exists: a request without a session
// needs none of it. Threads: the store's reads and writes on the work pool; Leave on any.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/request_plan.h"
#include "router/run_services.h"
#include "router/token_text.h"

namespace sluice {

// As a request names it.
struct SessionRef {
  std::string id;                             // empty: a single request
  std::optional<std::string> parent_turn_id;  // unset: the head; empty: the beginning
};

// As it is stored.
Turn FinishedTurn(const RequestPlan& plan, const TokenText& text, v1::FinishReason finish);

class SessionTurn {
 public:
  explicit SessionTurn(const RunServices* services) : services_(services) {}

  // A session of `owner` as it stands, which no other turn changes before Leave. Aborted: another turn of it
  // runs, or the parent is not its head. ResourceExhausted: its owner's sessions are full.
  absl::StatusOr<SessionState> Enter(const std::string& owner, const SessionRef& ref);
  void Leave();

  // Unless another turn has stored another home meanwhile.
  void StoreHome(const PlannedTurn& turn, const SessionHome& home);
  absl::Status Commit(const PlannedTurn& planned, const Turn& turn);

 private:
  const RunServices* const services_;
  std::string entered_;  // this session; empty: none
};

}  // namespace sluice
