// Role: carries one request from its bytes to its last event: plans it on the work pool, feeds RequestFlow
// with what workers, timers and the client do, and executes what it answers. Why it exists: RequestFlow
// decides, this one acts; neither does both. Threads: its methods from any; its state lives on its strand.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "router/delivery.h"
#include "router/reply_logprobs.h"
#include "router/request_flow.h"
#include "router/request_plan.h"
#include "router/request_record.h"
#include "router/run_services.h"
#include "router/session_turn.h"
#include "router/strand.h"
#include "router/token_text.h"
#include "router/worker_call.h"

namespace sluice {

class RequestRun final : public std::enable_shared_from_this<RequestRun>, private Delivery::Owner {
 public:
  // Called once each, in this order, on the work pool.
  struct Planner {
    std::function<absl::StatusOr<SessionRef>()> check;  // what needs no session
    std::function<absl::StatusOr<RequestPlan>(const SessionState*)> plan;
  };

  // method: the RPC's name, for metrics. sink lives until the run's Finish. timeout: the client's, if it has
  // one.
  RequestRun(const RunServices* services, std::string method, ReplySink* sink,
             std::optional<absl::Duration> timeout);
  ~RequestRun() override;

  void Start(Planner planner);
  void ClientGone();
  // The sink's backlog has shrunk.
  void Drained();
  void WorkerLost(const std::string& incarnation);
  void Abandon(const absl::Status& why);

 private:
  void Plan(Planner planner);  // on the work pool
  void Begin(RequestPlan plan);
  void Act(const FlowActions& actions);
  void Open(const OpenDecode& open);
  void Open(const OpenPrefill& open);
  void OnDecodeEvent(uint32_t attempt, const internal::v1::GenerateEvent& event);
  void OnPrefillEvent(uint32_t attempt, const internal::v1::PrefillEvent& event);
  // Of tokens from output index `index` on. False: the worker left out what was asked for.
  bool TakeLogprobs(uint32_t attempt, int index, int tokens,
                    absl::Span<const internal::v1::TokenLogprobs* const> logprobs);
  void TakeHome(const WorkerRef& worker, const internal::v1::FirstToken& first);
  void Emit(const std::vector<int32_t>& ids);
  void SendDelta(const TokenText::Piece& piece);
  void Commit(const FlowEnd& end);
  void SendDone(const FlowEnd& end);
  void GiveUp(const absl::Status& why);
  // On the strand, unless the run is gone by then.
  void CallAt(absl::Time time, std::function<void(RequestRun*)> task);

  void SetPaused(bool paused) override;
  void JudgeAt(absl::Time time) override;
  void ClientTooSlow(const absl::Status& status) override;
  void Delivered(const absl::Status& status) override;

  const RunServices* const services_;
  Strand strand_;

  // On the strand.
  RequestRecord record_;
  const absl::Time deadline_;
  Delivery delivery_;
  SessionTurn session_;
  std::optional<absl::Status> early_end_;  // before there was a flow
  RequestPlan plan_;
  std::unique_ptr<RequestFlow> flow_;
  std::unique_ptr<TokenText> text_;
  std::optional<ReplyLogprobs> logprobs_;  // if asked for
  bool home_known_ = false;
  std::shared_ptr<WorkerCall<internal::v1::PrefillEvent>> prefill_call_;
  std::shared_ptr<WorkerCall<internal::v1::GenerateEvent>> decode_call_;
  std::string handoff_id_;
  std::optional<int> matched_stop_;
};

}  // namespace sluice
