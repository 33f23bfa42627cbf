#include "router/session_turn.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "router/session_quota.h"

namespace sluice {

Turn FinishedTurn(const RequestPlan& plan, const TokenText& text, v1::FinishReason finish) {
  Turn turn;
  turn.id = plan.turn->turn_id;
  turn.messages = plan.turn->messages;
  turn.reply = text.text();
  turn.prompt_ids = plan.prompt_ids;
  turn.emitted_ids = text.TrimmedIds();
  turn.finish_reason = v1::FinishReason_Name(finish);
  turn.created_unix_ms = absl::ToUnixMillis(absl::Now());
  return turn;
}

absl::StatusOr<SessionState> SessionTurn::Enter(const std::string& owner, const SessionRef& ref) {
  SessionState state;
  SLUICE_ASSIGN_OR_RETURN(state.session, services_->store->Get(owner, ref.id));
  SLUICE_RETURN_IF_ERROR(NameQuota(services_->store->CheckRoom(owner)));
  if (!services_->busy_sessions->Enter(ref.id)) {
    return WithReason(
        absl::AbortedError("session_turn.session_id: another turn of this session is running; wait for "
                           "it, or fork the session"),
        "TURN_IN_PROGRESS");
  }
  entered_ = ref.id;
  // Again, now that no other turn can commit.
  SLUICE_ASSIGN_OR_RETURN(state.session, services_->store->Get(owner, ref.id));
  const std::string& head = state.session.head_turn_id;
  if (ref.parent_turn_id.has_value() && *ref.parent_turn_id != head) {
    return WithReason(
        absl::AbortedError(absl::StrCat("session_turn.parent_turn_id: stale, the session's head is ",
                                        head.empty() ? "its beginning" : head,
                                        "; read the session again, or fork it at that turn")),
        "STALE_PARENT");
  }
  if (!head.empty()) {
    SLUICE_ASSIGN_OR_RETURN(state.path, services_->store->Path(ref.id, head));
  }
  return state;
}

void SessionTurn::Leave() {
  if (!entered_.empty()) services_->busy_sessions->Leave(entered_);
}

void SessionTurn::StoreHome(const PlannedTurn& turn, const SessionHome& home) {
  absl::StatusOr<bool> set = services_->store->SetHome(turn.session_id, turn.home, home);
  if (!set.ok()) {
    spdlog::warn("home not stored session={} error=\"{}\"", turn.session_id,
                 std::string(set.status().message()));
  }
}

absl::Status SessionTurn::Commit(const PlannedTurn& planned, const Turn& turn) {
  return services_->store->CommitTurn(planned.session_id, planned.parent_turn_id, turn,
                                      SessionCompressionToJson(planned.compression));
}

}  // namespace sluice
