#include "router/request_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "router/flow_messages.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

// A client's own deadline shows here as its leaving, earlier than ours by what the request was under way.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);

absl::Status NoLogprobs(absl::string_view role) {
  return absl::InternalError(
      absl::StrCat("the ", role, " worker sent a token without its log-probabilities"));
}

}  // namespace

RequestRun::RequestRun(const RunServices* services, std::string method, ReplySink* sink,
                       std::optional<absl::Duration> timeout)
    : services_(services),
      record_(services, std::move(method)),
      deadline_(record_.accepted() + timeout.value_or(services->defaults->Get().timeout)),
      delivery_(sink, {services->options.max_backlog_bytes, services->options.slow_client_timeout},
                services->clock, this),
      session_(services) {
  ++services_->runs->alive();
}

RequestRun::~RequestRun() {
  // What holds memory of the router goes first: the router may go with the count.
  flow_.reset();
  text_.reset();
  --services_->runs->alive();
}

void RequestRun::Start(Planner planner) {
  strand_.Post([self = shared_from_this()] { self->record_.ShowStage(FlowStage::kQueued); });
  services_->pool->Submit([self = shared_from_this(), planner = std::move(planner)]() mutable {
    self->Plan(std::move(planner));
  });
}

void RequestRun::Plan(Planner planner) {
  absl::StatusOr<RequestPlan> plan = [&]() -> absl::StatusOr<RequestPlan> {
    SLUICE_ASSIGN_OR_RETURN(SessionRef ref, planner.check());
    if (ref.id.empty()) return planner.plan(nullptr);
    SLUICE_ASSIGN_OR_RETURN(SessionState state, session_.Enter(ref));
    return planner.plan(&state);
  }();
  strand_.Post([self = shared_from_this(), plan = std::move(plan)]() mutable {
    if (self->delivery_.ended()) return;
    if (self->early_end_.has_value()) return self->delivery_.Finish(*self->early_end_);
    if (!plan.ok()) return self->delivery_.Finish(plan.status());
    self->Begin(*std::move(plan));
  });
}

void RequestRun::Begin(RequestPlan plan) {
  plan_ = std::move(plan);
  absl::StatusOr<StopMatcher> stops = StopMatcher::Create(plan_.stop);
  if (!stops.ok()) return delivery_.Finish(stops.status());
  text_ = std::make_unique<TokenText>(services_->model->tokenizer.get(), *std::move(stops),
                                      plan_.sampling.min_tokens(), plan_.reply_is_text_of_its_own);
  if (plan_.sampling.logprobs()) logprobs_.emplace(services_->model->tokenizer.get());
  handoff_id_ = UuidV7();
  FlowRequest request;
  if (plan_.turn.has_value()) request.route.home = plan_.turn->home;
  request.max_tokens = plan_.sampling.max_tokens();
  request.min_tokens = plan_.sampling.min_tokens();
  request.stop_ids = {plan_.sampling.stop_token_ids().begin(), plan_.sampling.stop_token_ids().end()};
  request.deadline = deadline_;
  services_->runs->Name(this, plan_.request_id);
  flow_ = std::make_unique<RequestFlow>(std::move(request), services_->options.flow, services_->cluster);
  spdlog::info("accepted request={} method={} prompt={} gates={} session={}", plan_.request_id,
               record_.method(), plan_.prompt_ids.size(), plan_.gates.method,
               plan_.turn.has_value() ? plan_.turn->session_id : "-");
  delivery_.Send(StartedEvent(plan_, services_->model->name));
  Act(flow_->Start(services_->clock->Now()));
}

void RequestRun::ClientGone() {
  strand_.Post([self = shared_from_this()] {
    bool late = self->services_->clock->Now() >= self->deadline_ - kDeadlineSlack;
    self->GiveUp(late ? absl::DeadlineExceededError("the request's deadline has passed")
                      : absl::CancelledError("cancelled by the client"));
  });
}

void RequestRun::Abandon(const absl::Status& why) {
  strand_.Post([self = shared_from_this(), why] { self->GiveUp(why); });
}

void RequestRun::GiveUp(const absl::Status& why) {
  if (delivery_.ended()) return;
  if (delivery_.finishing()) return delivery_.End(why);  // nobody waits for the rest
  if (flow_ == nullptr) {
    early_end_ = why;
  } else {
    Act(flow_->Abandon(why));
  }
}

void RequestRun::Drained() {
  strand_.Post([self = shared_from_this()] { self->delivery_.Drained(); });
}

void RequestRun::WorkerLost(const std::string& incarnation) {
  strand_.Post([self = shared_from_this(), incarnation] {
    if (self->flow_ != nullptr)
      self->Act(self->flow_->WorkerLost(incarnation, self->services_->clock->Now()));
  });
}

void RequestRun::CallAt(absl::Time time, std::function<void(RequestRun*)> task) {
  services_->timers->At(time, [weak = weak_from_this(), task = std::move(task)]() mutable {
    std::shared_ptr<RequestRun> self = weak.lock();
    if (self == nullptr) return;
    RequestRun* run = self.get();
    run->strand_.Post([self = std::move(self), task = std::move(task)] { task(self.get()); });
  });
}

void RequestRun::Act(const FlowActions& actions) {
  for (const FlowAction& action : actions) {
    if (auto* open = std::get_if<OpenDecode>(&action)) {
      Open(*open);
    } else if (auto* open = std::get_if<OpenPrefill>(&action)) {
      Open(*open);
    } else if (std::get_if<CancelDecode>(&action)) {
      if (decode_call_ != nullptr) decode_call_->Cancel();
    } else if (std::get_if<CancelPrefill>(&action)) {
      if (prefill_call_ != nullptr) prefill_call_->Cancel();
    } else if (auto* emit = std::get_if<EmitTokens>(&action)) {
      Emit(emit->ids);
    } else if (auto* progress = std::get_if<ShowProgress>(&action)) {
      if (!delivery_.paused()) delivery_.Send(ProgressEvent(*progress));  // of no use later
    } else if (auto* wake = std::get_if<WakeAt>(&action)) {
      CallAt(wake->time, [](RequestRun* run) { run->Act(run->flow_->Wake(run->services_->clock->Now())); });
    } else if (auto* complete = std::get_if<Complete>(&action)) {
      Commit(matched_stop_.has_value() ? FlowEnd{FlowEnd::kStopString, -1} : complete->end);
    } else if (auto* fail = std::get_if<Fail>(&action)) {
      delivery_.Finish(fail->status);
    }
  }
  if (!delivery_.ended()) record_.ShowStage(flow_->stage());
}

void RequestRun::Open(const OpenDecode& open) {
  record_.Paired();
  auto request = GenerateRequestOf(open, plan_, handoff_id_, text_->ids());
  auto stub = internal::v1::DecodeWorker::NewStub(services_->channels->To(open.decode.address));
  services_->cluster->AddLoad(open.decode.incarnation, 1, 0);
  auto self = shared_from_this();
  decode_call_ = WorkerCall<internal::v1::GenerateEvent>::Start(
      &strand_, deadline_ - services_->clock->Now(),
      [&](auto* context, auto* reactor) { stub->async()->Generate(context, &request, reactor); },
      [self, attempt = open.attempt](const internal::v1::GenerateEvent& event) {
        self->OnDecodeEvent(attempt, event);
      },
      [self, attempt = open.attempt, incarnation = open.decode.incarnation](const absl::Status& status) {
        self->services_->cluster->AddLoad(incarnation, -1, 0);
        self->Act(self->flow_->DecodeEnded(attempt, status, self->services_->clock->Now()));
      });
  decode_call_->SetPaused(delivery_.paused());
}

void RequestRun::Open(const OpenPrefill& open) {
  auto request = PrefillRequestOf(open, plan_, handoff_id_, text_->ids());
  auto stub = internal::v1::PrefillWorker::NewStub(services_->channels->To(open.prefill.address));
  int64_t tokens = open.reuse_kept ? 0 : request.prompt_ids_size();
  services_->cluster->AddLoad(open.prefill.incarnation, 1, tokens);
  auto self = shared_from_this();
  prefill_call_ = WorkerCall<internal::v1::PrefillEvent>::Start(
      &strand_, deadline_ - services_->clock->Now(),
      [&](auto* context, auto* reactor) { stub->async()->Prefill(context, &request, reactor); },
      [self, attempt = open.attempt, worker = open.prefill](const internal::v1::PrefillEvent& event) {
        if (event.has_first_token()) self->TakeHome(worker, event.first_token());
        self->OnPrefillEvent(attempt, event);
      },
      [self, attempt = open.attempt, incarnation = open.prefill.incarnation,
       tokens](const absl::Status& status) {
        self->services_->cluster->AddLoad(incarnation, -1, -tokens);
        self->Act(self->flow_->PrefillEnded(attempt, status, self->services_->clock->Now()));
      });
}

void RequestRun::OnDecodeEvent(uint32_t attempt, const internal::v1::GenerateEvent& event) {
  absl::Time now = services_->clock->Now();
  switch (event.event_case()) {
    case internal::v1::GenerateEvent::kRegistered:
      return Act(flow_->Registered(attempt));
    case internal::v1::GenerateEvent::kReceiving:
      return Act(flow_->Receiving(attempt));
    case internal::v1::GenerateEvent::kTokens:
      if (!TakeLogprobs(
              attempt, event.tokens().index(), event.tokens().ids_size(),
              {event.tokens().logprobs().data(), static_cast<size_t>(event.tokens().logprobs_size())})) {
        decode_call_->Cancel();
        return Act(flow_->DecodeEnded(attempt, NoLogprobs("decode"), now));
      }
      return Act(flow_->Tokens(attempt, event.tokens().index(),
                               {event.tokens().ids().begin(), event.tokens().ids().end()}, now));
    case internal::v1::GenerateEvent::kGenerated:
      if (attempt == flow_->attempt()) record_.Generated(event.generated());
      return Act(flow_->Generated(attempt, EndOf(event.generated()), now));
    default:
      return;
  }
}

void RequestRun::OnPrefillEvent(uint32_t attempt, const internal::v1::PrefillEvent& event) {
  absl::Time now = services_->clock->Now();
  switch (event.event_case()) {
    case internal::v1::PrefillEvent::kProgress:
      return Act(flow_->Progress(attempt, event.progress().running(), event.progress().layers_done(),
                                 event.progress().layers(), event.progress().cached_tokens()));
    case internal::v1::PrefillEvent::kFirstToken: {
      const internal::v1::FirstToken& first = event.first_token();
      const internal::v1::TokenLogprobs* logprobs = &first.logprobs();
      if (!TakeLogprobs(attempt, flow_->first_index(), 1,
                        {&logprobs, first.has_logprobs() ? size_t{1} : 0})) {
        prefill_call_->Cancel();
        return Act(flow_->PrefillEnded(attempt, NoLogprobs("prefill"), now));
      }
      record_.FirstToken(first);
      return Act(flow_->FirstToken(attempt, first.token_id(), first.ends(), first.stopped(), now));
    }
    case internal::v1::PrefillEvent::kHandedOff:
      if (attempt == flow_->attempt()) record_.HandedOff(event.handed_off());
      return Act(flow_->HandedOff(attempt, event.handed_off().measuring(), now));
    case internal::v1::PrefillEvent::kMeasured:
      if (attempt == flow_->attempt()) record_.Measured(event.measured());
      return Act(flow_->Measured(attempt, now));
    case internal::v1::PrefillEvent::kHandoffFailed:
      return Act(flow_->HandoffFailed(attempt, FailureOf(event.handoff_failed()), now));
    default:
      return;
  }
}

bool RequestRun::TakeLogprobs(uint32_t attempt, int index, int tokens,
                              absl::Span<const internal::v1::TokenLogprobs* const> logprobs) {
  if (!logprobs_.has_value() || attempt != flow_->attempt()) return true;
  if (static_cast<int>(logprobs.size()) != tokens) return false;
  for (int i = 0; i < tokens; ++i) {
    if (index + i >= flow_->emitted()) logprobs_->Hold(index + i, *logprobs[i]);
  }
  return true;
}

// The first prefill worker that has computed the turn holds the session's history from now on.
void RequestRun::TakeHome(const WorkerRef& worker, const internal::v1::FirstToken& first) {
  if (!plan_.turn.has_value() || std::exchange(home_known_, true)) return;
  SessionHome home{worker.name, worker.incarnation};
  const std::optional<SessionHome>& before = plan_.turn->home;
  record_.TurnServed(before.has_value() && *before != home, first.history_outcome());
  if (before == home) return;
  services_->pool->Submit(
      [self = shared_from_this(), home] { self->session_.StoreHome(*self->plan_.turn, home); });
}

void RequestRun::Emit(const std::vector<int32_t>& ids) {
  if (matched_stop_.has_value()) return;
  TokenText::Piece sum;
  for (int32_t id : ids) {
    int index = static_cast<int>(text_->ids().size());
    const auto& stop_ids = plan_.sampling.stop_token_ids();
    bool silent =
        index + 1 > plan_.sampling.min_tokens() && std::count(stop_ids.begin(), stop_ids.end(), id) > 0;
    TokenText::Piece piece = text_->Push(id, silent);
    sum.text += piece.text;
    sum.ids.insert(sum.ids.end(), piece.ids.begin(), piece.ids.end());
    if (piece.stop.has_value()) {
      matched_stop_ = piece.stop;
      break;
    }
  }
  record_.Emitted(ids.size());
  SendDelta(sum);
  if (matched_stop_.has_value()) Act(flow_->StopString());
}

void RequestRun::SendDelta(const TokenText::Piece& piece) {
  if (piece.ids.empty()) return;
  v1::ChatEvent event;
  event.mutable_delta()->set_text(piece.text);
  event.mutable_delta()->mutable_token_ids()->Add(piece.ids.begin(), piece.ids.end());
  if (logprobs_.has_value()) logprobs_->MoveTo(piece.ids, event.mutable_delta());
  record_.DeltaSent();
  delivery_.Send(std::move(event));
}

void RequestRun::Commit(const FlowEnd& end) {
  SendDelta(text_->Finish());
  if (!plan_.turn.has_value()) return SendDone(end);
  Turn turn = FinishedTurn(plan_, *text_, FinishReasonOf(end, plan_));
  services_->pool->Submit([self = shared_from_this(), end, turn = std::move(turn)] {
    absl::Status status = self->session_.Commit(*self->plan_.turn, turn);
    self->strand_.Post(
        [self, end, status] { status.ok() ? self->SendDone(end) : self->delivery_.Finish(status); });
  });
}

void RequestRun::SendDone(const FlowEnd& end) {
  v1::ChatEvent event;
  v1::Done* done = event.mutable_done();
  v1::Choice* choice = done->add_choices();
  choice->set_finish_reason(FinishReasonOf(end, plan_));
  if (end.reason == FlowEnd::kStopId) choice->set_matched_stop(absl::StrCat(end.stop_id));
  if (matched_stop_.has_value()) choice->set_matched_stop(plan_.stop[*matched_stop_]);
  done->set_attempts(static_cast<int>(flow_->attempt()));
  record_.Report(plan_, static_cast<int>(text_->ids().size()), done);
  delivery_.Send(std::move(event));
  delivery_.Finish(absl::OkStatus());
}

void RequestRun::SetPaused(bool paused) {
  if (decode_call_ != nullptr) decode_call_->SetPaused(paused);
}

void RequestRun::JudgeAt(absl::Time time) {
  CallAt(time, [](RequestRun* run) { run->delivery_.Judge(); });
}

void RequestRun::ClientTooSlow(const absl::Status& status) {
  services_->metrics->slow_clients.Increment();
  GiveUp(status);
}

void RequestRun::Delivered(const absl::Status& status) {
  record_.Ended(status, plan_, flow_.get(), text_.get());
  record_.ShowStage(std::nullopt);
  session_.Leave();
  services_->runs->Remove(this);
}

}  // namespace sluice
