// Role: carries one request from its bytes to its last event: plans it on the work pool, feeds RequestFlow
// with what workers, timers and the client do, and executes what it answers. Why it exists: RequestFlow
// decides, this one acts; neither does both. Threads: its methods from any; its state lives on its strand.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "router/reply_sink.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "router/run_services.h"
#include "router/strand.h"
#include "router/token_text.h"
#include "router/worker_call.h"

namespace sluice {

class RequestRun : public std::enable_shared_from_this<RequestRun> {
 public:
  struct SessionRef {
    std::string id;  // empty: a single request
    std::optional<std::string>
        parent_turn_id;  // as the request gives it; unset: the head; empty: the beginning
  };
  // Called once each, in this order, on the work pool.
  struct Planner {
    std::function<absl::StatusOr<SessionRef>()> check;  // what needs no session
    std::function<absl::StatusOr<RequestPlan>(const SessionState*)> plan;
  };

  // method: the RPC's name, for metrics. sink lives until the run's Finish. timeout: the client's, if it has
  // one.
  RequestRun(const RunServices* services, std::string method, ReplySink* sink,
             std::optional<absl::Duration> timeout);
  ~RequestRun();

  void Start(Planner planner);
  void ClientGone();
  // The sink's backlog has shrunk.
  void Drained();
  void WorkerLost(const std::string& incarnation);
  void Abandon(const absl::Status& why);

 private:
  void Plan(Planner planner);  // on the work pool
  absl::StatusOr<SessionState> LoadSession(const SessionRef& ref);
  void Begin(RequestPlan plan);
  void SendStarted();
  void Act(const FlowActions& actions);
  void Open(const OpenDecode& open);
  void Open(const OpenPrefill& open);
  void OnDecodeEvent(uint32_t attempt, const internal::v1::GenerateEvent& event);
  void OnPrefillEvent(uint32_t attempt, const internal::v1::PrefillEvent& event);
  void TakeHome(const WorkerRef& worker, const internal::v1::FirstToken& first);
  void Emit(const std::vector<int32_t>& ids);
  void SendDelta(const TokenText::Piece& piece);
  void Send(v1::ChatEvent event);
  void CheckBacklog();
  void WatchClient();  // while something waits for it
  void WatchUntil(absl::Time time);
  void JudgeClient();
  void GiveUp(const absl::Status& why);
  void WakeAt(absl::Time time);
  void Commit(const FlowEnd& end);
  void Deliver(const FlowEnd& end);
  void Fail(const absl::Status& status);
  // The last event is sent; the request ends when the client has taken all, or lost our patience.
  void Finish(const absl::Status& status);
  void End(const absl::Status& status);
  void ShowStage(std::optional<FlowStage> stage);
  void CountOutcome(const absl::Status& status);
  v1::Done MakeDone(const FlowEnd& end) const;
  absl::Duration Since(absl::Time time) const { return services_->clock->Now() - time; }

  const RunServices* const services_;
  const std::string method_;
  const absl::Time accepted_;
  const absl::Time deadline_;
  Strand strand_;

  // On the strand.
  ReplySink* sink_;                        // null after End
  std::optional<absl::Status> early_end_;  // before there was a flow
  RequestPlan plan_;
  std::string busy_session_;  // left at Finish
  std::unique_ptr<RequestFlow> flow_;
  std::unique_ptr<TokenText> text_;
  std::shared_ptr<WorkerCall<internal::v1::PrefillEvent>> prefill_call_;
  std::shared_ptr<WorkerCall<internal::v1::GenerateEvent>> decode_call_;
  std::string handoff_id_;
  std::optional<int> matched_stop_;
  uint64_t seq_ = 0;
  bool paused_ = false;
  std::optional<absl::Status> ending_;
  bool watching_ = false;
  absl::Time last_taken_;

  // What is told at the end.
  std::optional<absl::Time> paired_, first_delta_, last_delta_;
  std::optional<internal::v1::FirstToken> first_;
  internal::v1::HandedOff handed_off_;
  internal::v1::Generated generated_;
  std::optional<FlowStage> shown_stage_;
};

}  // namespace sluice
