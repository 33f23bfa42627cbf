#include "router/request_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/status_codec.h"
#include "router/compression_codec.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

// A client's own deadline shows here as its leaving, earlier than ours by what the request was under way.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);
constexpr char kOwner[] = "";  // sessions have no owners before there is authentication

v1::FinishReason FinishReasonOf(const FlowEnd& end, const RequestPlan& plan) {
  switch (end.reason) {
    case FlowEnd::kStopId: {
      bool eos = std::count(plan.eos_ids.begin(), plan.eos_ids.end(), end.stop_id) > 0;
      return eos ? v1::STOP_EOS : v1::STOP_STRING;
    }
    case FlowEnd::kStopString:
      return v1::STOP_STRING;
    case FlowEnd::kLength:
      return plan.context_bound ? v1::CONTEXT_FULL : v1::LENGTH;
    case FlowEnd::kContext:
      return v1::CONTEXT_FULL;
  }
  return v1::ERROR;
}

v1::Progress::Stage StageOf(FlowStage stage) {
  switch (stage) {
    case FlowStage::kQueued:
      return v1::Progress::QUEUED;
    case FlowStage::kPrefill:
      return v1::Progress::PREFILL;
    case FlowStage::kTransfer:
      return v1::Progress::TRANSFER;
    case FlowStage::kDecode:
      return v1::Progress::DECODE;
  }
  return v1::Progress::STAGE_UNSPECIFIED;
}

// What the client has not taken is of no use to it.
bool NobodyReads(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) || ReasonOf(status) == "SLOW_CLIENT";
}

FlowEnd EndOf(const internal::v1::Generated& generated) {
  if (generated.finish() == "stop") return {FlowEnd::kStopId, generated.stop_token_id()};
  if (generated.finish() == "context") return {FlowEnd::kContext, -1};
  return {FlowEnd::kLength, -1};
}

}  // namespace

RequestRun::RequestRun(const RunServices* services, std::string method, ReplySink* sink,
                       std::optional<absl::Duration> timeout)
    : services_(services),
      method_(std::move(method)),
      accepted_(services->clock->Now()),
      deadline_(accepted_ + timeout.value_or(services->options.default_timeout)),
      sink_(sink) {
  ++services_->runs->alive();
}

RequestRun::~RequestRun() {
  // What holds memory of the router goes first: the router may go with the count.
  flow_.reset();
  text_.reset();
  --services_->runs->alive();
}

void RequestRun::Start(Planner planner) {
  strand_.Post([self = shared_from_this()] { self->ShowStage(FlowStage::kQueued); });
  services_->pool->Submit([self = shared_from_this(), planner = std::move(planner)]() mutable {
    self->Plan(std::move(planner));
  });
}

void RequestRun::Plan(Planner planner) {
  absl::StatusOr<RequestPlan> plan = [&]() -> absl::StatusOr<RequestPlan> {
    SLUICE_ASSIGN_OR_RETURN(SessionRef ref, planner.check());
    if (ref.id.empty()) return planner.plan(nullptr);
    SLUICE_ASSIGN_OR_RETURN(SessionState state, LoadSession(ref));
    return planner.plan(&state);
  }();
  strand_.Post([self = shared_from_this(), plan = std::move(plan)]() mutable {
    if (self->sink_ == nullptr) return;
    if (self->early_end_.has_value()) return self->Fail(*self->early_end_);
    if (!plan.ok()) return self->Fail(plan.status());
    self->Begin(*std::move(plan));
  });
}

absl::StatusOr<SessionState> RequestRun::LoadSession(const SessionRef& ref) {
  SessionState state;
  SLUICE_ASSIGN_OR_RETURN(state.session, services_->store->Get(kOwner, ref.id));
  if (!services_->busy_sessions->Enter(ref.id)) {
    return WithReason(
        absl::AbortedError("session_turn.session_id: another turn of this session is running; wait for "
                           "it, or fork the session"),
        "TURN_IN_PROGRESS");
  }
  busy_session_ = ref.id;
  // Again, now that no other turn can commit.
  SLUICE_ASSIGN_OR_RETURN(state.session, services_->store->Get(kOwner, ref.id));
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

void RequestRun::Begin(RequestPlan plan) {
  plan_ = std::move(plan);
  absl::StatusOr<StopMatcher> stops = StopMatcher::Create(plan_.stop);
  if (!stops.ok()) return Fail(stops.status());
  text_ = std::make_unique<TokenText>(services_->model->tokenizer.get(), *std::move(stops),
                                      plan_.sampling.min_tokens(), plan_.reply_is_text_of_its_own);
  handoff_id_ = UuidV7();
  FlowRequest request;
  if (plan_.turn.has_value()) request.route.home = plan_.turn->home;
  request.max_tokens = plan_.sampling.max_tokens();
  request.min_tokens = plan_.sampling.min_tokens();
  request.stop_ids = {plan_.sampling.stop_token_ids().begin(), plan_.sampling.stop_token_ids().end()};
  request.deadline = deadline_;
  flow_ = std::make_unique<RequestFlow>(std::move(request), services_->options.flow, services_->cluster);
  spdlog::info("accepted request={} method={} prompt={} gates={} session={}", plan_.request_id, method_,
               plan_.prompt_ids.size(), plan_.gates.method,
               plan_.turn.has_value() ? plan_.turn->session_id : "-");
  SendStarted();
  Act(flow_->Start(services_->clock->Now()));
}

void RequestRun::SendStarted() {
  v1::ChatEvent event;
  v1::Started* started = event.mutable_started();
  started->set_request_id(plan_.request_id);
  if (plan_.turn.has_value()) {
    started->set_session_id(plan_.turn->session_id);
    started->set_turn_id(plan_.turn->turn_id);
  }
  started->set_model(services_->model->name);
  started->set_prompt_tokens(static_cast<int>(plan_.prompt_ids.size()));
  started->set_max_tokens(plan_.sampling.max_tokens());
  *started->mutable_sampling() = EffectiveSampling(plan_.sampling);
  Send(std::move(event));
}

void RequestRun::ClientGone() {
  strand_.Post([self = shared_from_this()] {
    bool late = self->services_->clock->Now() >= self->deadline_ - kDeadlineSlack;
    absl::Status why = late ? absl::DeadlineExceededError("the request's deadline has passed")
                            : absl::CancelledError("cancelled by the client");
    self->GiveUp(why);
  });
}

void RequestRun::Abandon(const absl::Status& why) {
  strand_.Post([self = shared_from_this(), why] { self->GiveUp(why); });
}

void RequestRun::GiveUp(const absl::Status& why) {
  if (sink_ == nullptr) return;
  if (ending_.has_value()) return End(why);  // nobody waits for the rest
  if (flow_ == nullptr) {
    early_end_ = why;
  } else {
    Act(flow_->Abandon(why));
  }
}

void RequestRun::WorkerLost(const std::string& incarnation) {
  strand_.Post([self = shared_from_this(), incarnation] {
    if (self->flow_ != nullptr)
      self->Act(self->flow_->WorkerLost(incarnation, self->services_->clock->Now()));
  });
}

void RequestRun::WakeAt(absl::Time time) {
  services_->timers->At(time, [weak = weak_from_this()] {
    std::shared_ptr<RequestRun> self = weak.lock();
    if (self == nullptr) return;
    RequestRun* run = self.get();
    run->strand_.Post(
        [self = std::move(self)] { self->Act(self->flow_->Wake(self->services_->clock->Now())); });
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
      v1::ChatEvent event;
      event.mutable_progress()->set_stage(StageOf(progress->stage));
      event.mutable_progress()->set_processed(progress->processed);
      event.mutable_progress()->set_total(progress->total);
      event.mutable_progress()->set_cached(progress->cached);
      if (!paused_) Send(std::move(event));  // of no use later
    } else if (auto* wake = std::get_if<struct WakeAt>(&action)) {
      WakeAt(wake->time);
    } else if (auto* complete = std::get_if<Complete>(&action)) {
      Commit(matched_stop_.has_value() ? FlowEnd{FlowEnd::kStopString, -1} : complete->end);
    } else if (auto* fail = std::get_if<struct Fail>(&action)) {
      Fail(fail->status);
    }
  }
  if (sink_ != nullptr && flow_ != nullptr) ShowStage(flow_->stage());
}

void RequestRun::Open(const OpenDecode& open) {
  if (!paired_.has_value()) paired_ = services_->clock->Now();
  internal::v1::GenerateRequest request;
  request.set_request_id(plan_.request_id);
  request.set_handoff_id(handoff_id_);
  request.set_attempt(open.attempt);
  *request.mutable_gates() = GatesToProto(plan_.gates);
  *request.mutable_sampling() = plan_.sampling;
  request.set_prefill_incarnation(open.prefill.incarnation);
  request.mutable_emitted_ids()->Add(text_->ids().begin(), text_->ids().begin() + open.emitted);
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
  decode_call_->SetPaused(paused_);
}

void RequestRun::Open(const OpenPrefill& open) {
  internal::v1::PrefillRequest request;
  request.set_request_id(plan_.request_id);
  request.set_handoff_id(handoff_id_);
  request.set_attempt(open.attempt);
  request.set_decode_address(open.decode.address);
  request.set_decode_incarnation(open.decode.incarnation);
  request.mutable_prompt_ids()->Add(plan_.prompt_ids.begin(), plan_.prompt_ids.end());
  request.mutable_prompt_ids()->Add(text_->ids().begin(), text_->ids().begin() + open.emitted);
  *request.mutable_gates() = GatesToProto(plan_.gates);
  *request.mutable_sampling() = plan_.sampling;
  if (plan_.turn.has_value()) {
    request.set_session_id(plan_.turn->session_id);
    request.set_owner(kOwner);
    request.set_parent_turn_id(plan_.turn->parent_turn_id);
    request.set_turn_id(plan_.turn->turn_id);
  }
  request.set_turn_tokens(plan_.turn_tokens + open.emitted);
  request.set_reuse_kept(open.reuse_kept);
  request.set_emitted(open.emitted);
  auto stub = internal::v1::PrefillWorker::NewStub(services_->channels->To(open.prefill.address));
  int64_t tokens = open.reuse_kept ? 0 : request.prompt_ids_size();
  services_->cluster->AddLoad(open.prefill.incarnation, 1, tokens);
  auto self = shared_from_this();
  prefill_call_ = WorkerCall<internal::v1::PrefillEvent>::Start(
      &strand_, deadline_ - services_->clock->Now(),
      [&](auto* context, auto* reactor) { stub->async()->Prefill(context, &request, reactor); },
      [self, attempt = open.attempt, worker = open.prefill](const internal::v1::PrefillEvent& event) {
        if (event.has_first_token() && !self->first_.has_value()) self->TakeHome(worker, event.first_token());
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
      return Act(flow_->Tokens(attempt, event.tokens().index(),
                               {event.tokens().ids().begin(), event.tokens().ids().end()}, now));
    case internal::v1::GenerateEvent::kGenerated:
      if (attempt == flow_->attempt()) generated_ = event.generated();
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
      if (!first_.has_value()) first_ = first;
      return Act(flow_->FirstToken(attempt, first.token_id(), first.ends(), first.stopped(), now));
    }
    case internal::v1::PrefillEvent::kHandedOff:
      if (attempt == flow_->attempt()) handed_off_ = event.handed_off();
      return Act(flow_->HandedOff(attempt, now));
    case internal::v1::PrefillEvent::kHandoffFailed: {
      const internal::v1::HandoffFailed& failed = event.handoff_failed();
      return Act(flow_->HandoffFailed(
          attempt,
          {failed.reason(), failed.detail(), failed.retained(), absl::Milliseconds(failed.retry_after_ms())},
          now));
    }
    default:
      return;
  }
}

// The first prefill worker that has computed the turn holds the session's history from now on.
void RequestRun::TakeHome(const WorkerRef& worker, const internal::v1::FirstToken& first) {
  if (!plan_.turn.has_value()) return;
  SessionHome home{worker.name, worker.incarnation};
  const std::optional<SessionHome>& before = plan_.turn->home;
  if (before.has_value() && *before != home) {
    services_->metrics->session_turns_remote.Increment();
  } else if (first.history_outcome() == "warm") {
    services_->metrics->session_turns_warm.Increment();
  } else {
    services_->metrics->session_turns_cold.Increment();
  }
  if (before == home) return;
  services_->pool->Submit([self = shared_from_this(), home] {
    absl::StatusOr<bool> set =
        self->services_->store->SetHome(self->plan_.turn->session_id, self->plan_.turn->home, home);
    if (!set.ok())
      spdlog::warn("home not stored session={} error=\"{}\"", self->plan_.turn->session_id,
                   std::string(set.status().message()));
  });
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
  absl::Time now = services_->clock->Now();
  if (last_delta_.has_value()) {
    services_->metrics->inter_token_seconds.Observe(absl::ToDoubleSeconds(now - *last_delta_) / ids.size());
  }
  last_delta_ = now;
  SendDelta(sum);
  if (matched_stop_.has_value()) Act(flow_->StopString());
}

void RequestRun::SendDelta(const TokenText::Piece& piece) {
  if (piece.ids.empty()) return;
  v1::ChatEvent event;
  event.mutable_delta()->set_text(piece.text);
  event.mutable_delta()->mutable_token_ids()->Add(piece.ids.begin(), piece.ids.end());
  if (!first_delta_.has_value()) first_delta_ = services_->clock->Now();
  Send(std::move(event));
}

void RequestRun::Send(v1::ChatEvent event) {
  if (sink_ == nullptr) return;
  event.set_seq(seq_++);
  sink_->Send(event);
  CheckBacklog();
}

void RequestRun::CheckBacklog() {
  if (sink_ == nullptr) return;
  size_t bound = services_->options.max_backlog_bytes;
  size_t backlog = sink_->backlog_bytes();
  if (ending_.has_value()) {
    if (backlog == 0) End(*ending_);
    return;
  }
  if (paused_ == (backlog > (paused_ ? bound / 2 : bound))) return;
  paused_ = !paused_;
  if (decode_call_ != nullptr) decode_call_->SetPaused(paused_);
  if (paused_) WatchClient();
}

void RequestRun::Drained() {
  strand_.Post([self = shared_from_this()] {
    self->last_taken_ = self->services_->clock->Now();
    self->CheckBacklog();
  });
}

void RequestRun::WatchClient() {
  if (watching_) return;
  watching_ = true;
  last_taken_ = services_->clock->Now();
  WatchUntil(last_taken_ + services_->options.slow_client_timeout);
}

void RequestRun::WatchUntil(absl::Time time) {
  services_->timers->At(time, [weak = weak_from_this()] {
    std::shared_ptr<RequestRun> self = weak.lock();
    if (self == nullptr) return;
    RequestRun* run = self.get();
    run->strand_.Post([self = std::move(self)] { self->JudgeClient(); });
  });
}

void RequestRun::JudgeClient() {
  watching_ = sink_ != nullptr && (paused_ || ending_.has_value());
  if (!watching_) return;
  absl::Time patience = last_taken_ + services_->options.slow_client_timeout;
  if (services_->clock->Now() < patience) return WatchUntil(patience);
  services_->metrics->slow_clients.Increment();
  absl::Status slow = WithRetryAfter(
      WithReason(absl::ResourceExhaustedError("the client reads too slowly; read the stream as it comes"),
                 "SLOW_CLIENT"),
      absl::Seconds(1));
  if (ending_.has_value()) return End(slow);
  Act(flow_->Abandon(slow));
}

void RequestRun::Commit(const FlowEnd& end) {
  SendDelta(text_->Finish());
  if (!plan_.turn.has_value()) return Deliver(end);
  Turn turn;
  turn.id = plan_.turn->turn_id;
  turn.messages = plan_.turn->messages;
  turn.reply = text_->text();
  turn.prompt_ids = plan_.prompt_ids;
  turn.emitted_ids = text_->TrimmedIds();
  turn.finish_reason = v1::FinishReason_Name(FinishReasonOf(end, plan_));
  turn.created_unix_ms = absl::ToUnixMillis(absl::Now());
  std::string gates = plan_.gates.history == HistoryKind::kEvict ? GatesToJson(plan_.gates) : "";
  services_->pool->Submit([self = shared_from_this(), end, turn = std::move(turn), gates = std::move(gates)] {
    const PlannedTurn& planned = *self->plan_.turn;
    absl::Status status =
        self->services_->store->CommitTurn(planned.session_id, planned.parent_turn_id, turn, gates);
    self->strand_.Post([self, end, status] { status.ok() ? self->Deliver(end) : self->Fail(status); });
  });
}

v1::Done RequestRun::MakeDone(const FlowEnd& end) const {
  v1::Done done;
  v1::Choice* choice = done.add_choices();
  choice->set_finish_reason(FinishReasonOf(end, plan_));
  if (end.reason == FlowEnd::kStopId) choice->set_matched_stop(absl::StrCat(end.stop_id));
  if (matched_stop_.has_value()) choice->set_matched_stop(plan_.stop[*matched_stop_]);

  internal::v1::FirstToken first = first_.value_or(internal::v1::FirstToken());
  done.mutable_usage()->set_prompt_tokens(static_cast<int>(plan_.prompt_ids.size()));
  done.mutable_usage()->set_cached_tokens(first.cached_tokens());
  done.mutable_usage()->set_completion_tokens(static_cast<int>(text_->ids().size()));

  v1::Timings* timings = done.mutable_timings();
  timings->set_queue_seconds(absl::ToDoubleSeconds(paired_.value_or(accepted_) - accepted_) +
                             first.queue_seconds());
  timings->set_prefill_seconds(first.prefill_seconds());
  timings->set_transfer_seconds(handed_off_.transfer_seconds());
  timings->set_first_token_seconds(absl::ToDoubleSeconds(first_delta_.value_or(accepted_) - accepted_));
  timings->set_decode_seconds(generated_.decode_seconds());
  timings->set_total_seconds(absl::ToDoubleSeconds(Since(accepted_)));

  v1::CompressionReport report = ReportOf(plan_.gates, static_cast<int>(plan_.prompt_ids.size()));
  report.set_kept_tokens_min(handed_off_.kept().kept_min());
  report.set_kept_tokens_mean(handed_off_.kept().kept_mean());
  report.set_kv_bytes_full(handed_off_.kept().bytes_full());
  report.set_kv_bytes_kept(handed_off_.kept().bytes_kept());
  report.set_wire_bytes(handed_off_.wire_bytes());
  *done.mutable_compression() = std::move(report);
  done.set_attempts(static_cast<int>(flow_->attempt()));
  return done;
}

void RequestRun::Deliver(const FlowEnd& end) {
  v1::ChatEvent event;
  *event.mutable_done() = MakeDone(end);
  Send(std::move(event));
  Finish(absl::OkStatus());
}

void RequestRun::Fail(const absl::Status& status) { Finish(status); }

void RequestRun::Finish(const absl::Status& status) {
  if (sink_ == nullptr || ending_.has_value()) return;
  ending_ = status;
  if (sink_->backlog_bytes() == 0 || NobodyReads(status)) return End(status);
  WatchClient();
}

void RequestRun::End(const absl::Status& status) {
  CountOutcome(status);
  ShowStage(std::nullopt);
  if (!busy_session_.empty()) services_->busy_sessions->Leave(busy_session_);
  services_->runs->Remove(this);
  ReplySink* sink = std::exchange(sink_, nullptr);
  sink->Finish(status);
}

void RequestRun::ShowStage(std::optional<FlowStage> stage) {
  if (stage == shown_stage_) return;
  auto gauge = [&](FlowStage of) -> const Gauge& {
    switch (of) {
      case FlowStage::kPrefill:
        return services_->metrics->in_flight_prefill;
      case FlowStage::kTransfer:
        return services_->metrics->in_flight_transfer;
      case FlowStage::kDecode:
        return services_->metrics->in_flight_decode;
      default:
        return services_->metrics->in_flight_queued;
    }
  };
  if (shown_stage_.has_value()) gauge(*shown_stage_).Add(-1);
  if (stage.has_value()) gauge(*stage).Add(1);
  shown_stage_ = stage;
}

void RequestRun::CountOutcome(const absl::Status& status) {
  const RouterMetrics& metrics = *services_->metrics;
  std::string code = absl::StatusCodeToString(status.code());
  metrics.requests.At(method_).At(code).Increment();
  services_->stats->requests += 1;
  double total = absl::ToDoubleSeconds(Since(accepted_));
  metrics.request_seconds.Observe(total);
  if (paired_.has_value()) metrics.queue_seconds.Observe(absl::ToDoubleSeconds(*paired_ - accepted_));
  int emitted = text_ == nullptr ? 0 : static_cast<int>(text_->ids().size());
  spdlog::info("ended request={} method={} code={} tokens={} attempts={} seconds={:.3f}{}{}",
               plan_.request_id.empty() ? "-" : plan_.request_id, method_, code, emitted,
               flow_ == nullptr ? 0 : flow_->attempt(), total,
               status.ok() ? "" : " error=", std::string(status.message()));
  if (!status.ok()) {
    services_->stats->failed += 1;
    if (absl::IsCancelled(status)) {
      switch (flow_ == nullptr ? FlowStage::kQueued : flow_->stage()) {
        case FlowStage::kQueued:
          metrics.cancelled_queued.Increment();
          break;
        case FlowStage::kPrefill:
          metrics.cancelled_prefill.Increment();
          break;
        case FlowStage::kTransfer:
          metrics.cancelled_transfer.Increment();
          break;
        case FlowStage::kDecode:
          metrics.cancelled_decode.Increment();
          break;
      }
    }
    return;
  }
  int cached = first_.has_value() ? first_->cached_tokens() : 0;
  if (first_delta_.has_value()) {
    metrics.time_to_first_token_seconds.Observe(absl::ToDoubleSeconds(*first_delta_ - accepted_));
    if (emitted > 1) {
      metrics.time_per_output_token_seconds.Observe(absl::ToDoubleSeconds(*last_delta_ - *first_delta_) /
                                                    (emitted - 1));
    }
  }
  metrics.prompt_tokens.Observe(plan_.prompt_ids.size());
  metrics.completion_tokens.Observe(emitted);
  metrics.tokens_prompt.Increment(plan_.prompt_ids.size());
  metrics.tokens_cached.Increment(cached);
  metrics.tokens_completion.Increment(emitted);
  services_->stats->prompt_tokens += plan_.prompt_ids.size();
  services_->stats->cached_tokens += cached;
  services_->stats->completion_tokens += emitted;
  if (!plan_.gates.off_reason.empty()) {
    metrics.compression_fallbacks.At(FallbackLabel(plan_.gates.off_reason)).Increment();
  }
}

}  // namespace sluice
