// Role: carries one request from its bytes to its last event: plans it on the work pool, runs its choices,
// makes one reply of theirs. Why it exists: whatever the number of answers, the client sent one request: it
// is admitted, paused, cancelled and failed as one. Threads: its methods from any; its state lives on its
// strand.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/choice_run.h"
#include "router/delivery.h"
#include "router/request_plan.h"
#include "router/request_record.h"
#include "router/run_services.h"
#include "router/session_turn.h"
#include "router/strand.h"

namespace sluice {

class RequestRun final : public std::enable_shared_from_this<RequestRun>,
                         private Delivery::Owner,
                         private ChoiceRun::Owner {
 public:
  // Called once each, in this order, on the work pool.
  struct Planner {
    std::function<absl::StatusOr<SessionRef>()> check;  // what needs no session
    std::function<absl::StatusOr<RequestPlan>(const SessionState*)> plan;
  };

  // method: the RPC's name, for metrics. sink lives until the run's Finish. timeout: the client's, if it has
  // one.
  RequestRun(const RunServices* services, std::string method, ReplySink* sink,
             std::optional<absl::Duration> timeout, Caller caller);
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
  absl::Status JudgeTerms();  // the request's own, and what has to give way for them
  void Commit();
  void SendDone();
  void GiveUp(const absl::Status& why);
  // Ends all choices, and the reply with them.
  void Fail(const absl::Status& why);
  FlowStage stage() const;  // of the choice that is least far

  std::shared_ptr<void> Hold() override { return shared_from_this(); }
  Strand* strand() override { return &strand_; }
  bool paused() const override { return delivery_.paused(); }
  void Send(v1::ChatEvent event) override { delivery_.Send(std::move(event)); }
  void HistoryAt(const WorkerRef& prefill, const internal::v1::FirstToken& first) override;
  void StageMayHaveChanged() override;
  void ChoiceEnded() override;
  void ChoiceFailed(const absl::Status& status) override { Fail(status); }

  void SetPaused(bool paused) override;
  void JudgeAt(absl::Time time) override;
  void ClientTooSlow(const absl::Status& status) override;
  void Delivered(const absl::Status& status) override;

  const RunServices* const services_;
  Strand strand_;

  // On the strand.
  Caller caller_;
  RequestRecord record_;
  const absl::Time deadline_;
  Delivery delivery_;
  SessionTurn session_;
  std::optional<absl::Status> early_end_;  // before there were choices
  RequestPlan plan_;
  std::vector<std::unique_ptr<ChoiceRun>> choices_;
  bool home_known_ = false;
  bool failed_ = false;
};

}  // namespace sluice
