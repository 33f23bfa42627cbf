#include "router/request_start.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

absl::Status Admit(const RunServices& services, const std::shared_ptr<RequestRun>& run) {
  const auto& refused = services.metrics->admission_refused;
  if (*services.draining) {
    refused.At("draining").Increment();
    return WithRetryAfter(
        WithReason(absl::UnavailableError("the router is draining; go to another one, or try again later"),
                   "DRAINING"),
        absl::Seconds(1));
  }
  absl::Status status = services.runs->Add(run);
  if (!status.ok()) refused.At("queue_full").Increment();
  return status;
}

}  // namespace

RequestRun::Planner PlannerOf(const RunServices* services,
                              std::function<absl::Status(v1::ChatRequest*)> read) {
  auto request = std::make_shared<v1::ChatRequest>();
  RequestRun::Planner planner;
  planner.check = [=, read = std::move(read)]() -> absl::StatusOr<SessionRef> {
    SLUICE_RETURN_IF_ERROR(read(request.get()));
    SLUICE_RETURN_IF_ERROR(CheckChat(*services->model, *request));
    const v1::SessionTurn& turn = request->session_turn();
    SessionRef ref{turn.session_id(), std::nullopt};
    if (turn.has_parent_turn_id()) ref.parent_turn_id = turn.parent_turn_id();
    return ref;
  };
  planner.plan = [=](const SessionState* session) {
    return PlanChat(*services->model, *request, session, services->defaults->Get());
  };
  return planner;
}

RequestRun::Planner PlannerOf(const RunServices* services,
                              std::function<absl::Status(v1::CompleteRequest*)> read) {
  auto request = std::make_shared<v1::CompleteRequest>();
  RequestRun::Planner planner;
  planner.check = [=, read = std::move(read)]() -> absl::StatusOr<SessionRef> {
    SLUICE_RETURN_IF_ERROR(read(request.get()));
    return SessionRef{};
  };
  planner.plan = [=](const SessionState*) {
    return PlanComplete(*services->model, *request, services->defaults->Get());
  };
  return planner;
}

std::shared_ptr<RequestRun> AdmitRun(const RunServices* services, const char* method, ReplySink* sink,
                                     std::optional<absl::Duration> timeout, absl::string_view authorization) {
  std::shared_ptr<RequestRun> run;
  absl::StatusOr<Caller> caller = services->authenticator->Admit(authorization);
  absl::Status status = caller.status();
  if (status.ok()) {
    run = std::make_shared<RequestRun>(services, method, sink, timeout, *std::move(caller));
    status = Admit(*services, run);
  }
  if (status.ok()) return run;
  services->metrics->requests.At(method).At(absl::StatusCodeToString(status.code())).Increment();
  sink->Finish(status);
  return nullptr;
}

absl::Status SubmitTextCall(const RunServices& services, absl::string_view authorization,
                            std::function<absl::Status()> work,
                            std::function<void(const absl::Status&)> answer) {
  SLUICE_ASSIGN_OR_RETURN(Caller admitted, services.authenticator->Admit(authorization));
  std::atomic<int>& under_way = *services.text_calls;
  if (under_way.fetch_add(1) >= services.runs->capacity()) {
    --under_way;
    return QueueFull(services.runs->capacity());
  }
  services.pool->Submit([&under_way, caller = std::make_shared<Caller>(std::move(admitted)),
                         work = std::move(work), answer = std::move(answer)] {
    const absl::Status status = work();
    --under_way;
    caller->Leave();
    answer(status);
  });
  return absl::OkStatus();
}

}  // namespace sluice
