#include "router/request_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "router/flow_messages.h"

namespace sluice {
namespace {

// A client's own deadline shows here as its leaving, earlier than ours by what the request was under way.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);

}  // namespace

RequestRun::RequestRun(const RunServices* services, std::string method, ReplySink* sink,
                       std::optional<absl::Duration> timeout, Caller caller)
    : services_(services),
      caller_(std::move(caller)),
      record_(services, std::move(method)),
      deadline_(record_.accepted() + timeout.value_or(services->defaults->Get().timeout)),
      delivery_(sink, {services->options.max_backlog_bytes, services->options.slow_client_timeout},
                services->clock, this),
      session_(services) {
  ++services_->runs->alive();
}

RequestRun::~RequestRun() {
  // What holds memory of the router goes first: the router may go with the count.
  choices_.clear();
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
    SLUICE_ASSIGN_OR_RETURN(SessionState state, session_.Enter(caller_.owner(), ref));
    return planner.plan(&state);
  }();
  if (plan.ok()) SetOwner(caller_.owner(), &*plan);
  strand_.Post([self = shared_from_this(), plan = std::move(plan)]() mutable {
    if (self->delivery_.ended()) return;
    if (self->early_end_.has_value()) return self->delivery_.Finish(*self->early_end_);
    if (!plan.ok()) return self->delivery_.Finish(plan.status());
    self->Begin(*std::move(plan));
  });
}

void RequestRun::Begin(RequestPlan plan) {
  plan_ = std::move(plan);
  caller_.SpendTokens(static_cast<int64_t>(plan_.prompt_ids.size()));
  absl::StatusOr<StopMatcher> stops = StopMatcher::Create(plan_.stop);
  if (!stops.ok()) return delivery_.Finish(stops.status());
  if (absl::Status terms = JudgeTerms(); !terms.ok()) return delivery_.Finish(terms);
  if (absl::Status room = services_->runs->Widen(this, plan_.choices); !room.ok()) {
    if (absl::IsResourceExhausted(room)) services_->metrics->admission_refused.At("queue_full").Increment();
    return delivery_.Finish(room);
  }
  services_->runs->Name(this, plan_.request_id);
  ChoiceRun::Owner* owner = this;
  for (int i = 0; i < plan_.choices; ++i) {
    choices_.push_back(std::make_unique<ChoiceRun>(services_, &plan_, i, deadline_, *stops, owner));
  }
  spdlog::info("accepted request={} method={} prompt={} choices={} gates={} session={}", plan_.request_id,
               record_.method(), plan_.prompt_ids.size(), plan_.choices, plan_.gates.method,
               plan_.turn.has_value() ? plan_.turn->session_id : "-");
  delivery_.Send(StartedEvent(plan_, services_->model->name));
  for (const auto& choice : choices_) {
    if (!failed_) choice->Start();
  }
}

absl::Status RequestRun::JudgeTerms() {
  if (!plan_.slo.asked()) return absl::OkStatus();
  const RouteQuery query = RouteQueryOf(plan_);
  const std::vector<Candidate> prefill = services_->cluster->Candidates(WorkerRole::kPrefill, query);
  const std::vector<Candidate> decode = services_->cluster->Candidates(WorkerRole::kDecode, query);
  const int prompt = static_cast<int>(plan_.prompt_ids.size()), layers = services_->model->shape.n_layers;
  std::vector<double> work = {TokensComputed(plan_.gates, prompt, layers)};
  for (const ResolvedGates& lower : plan_.lower_gates) work.push_back(TokensComputed(lower, prompt, layers));
  const SloVerdict verdict =
      JudgeSlo(plan_.slo, services_->clock->Now() - record_.accepted(), query, work, prefill, decode);
  switch (verdict.kind) {
    case SloVerdict::kFirstTokenTooLate:
      services_->metrics->admission_refused.At("slo_ttft").Increment();
      break;
    case SloVerdict::kTokensTooSlow:
      services_->metrics->admission_refused.At("slo_tpot").Increment();
      break;
    case SloVerdict::kTake:
      if (verdict.level == 0) break;
      services_->metrics->slo_budget_lowered.Increment();
      plan_.budget_asked = plan_.gates.budget_tokens;
      plan_.gates = plan_.lower_gates[verdict.level - 1];
  }
  return verdict.status;
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
  if (choices_.empty()) {
    early_end_ = why;
  } else if (std::any_of(choices_.begin(), choices_.end(), [](const auto& c) { return !c->ended(); })) {
    Fail(why);
  }  // else its turn is being committed: it ends so
}

void RequestRun::Fail(const absl::Status& why) {
  if (std::exchange(failed_, true)) return;
  for (const auto& choice : choices_) choice->Abandon(why);
  delivery_.Finish(why);
}

void RequestRun::Drained() {
  strand_.Post([self = shared_from_this()] { self->delivery_.Drained(); });
}

void RequestRun::WorkerLost(const std::string& incarnation) {
  strand_.Post([self = shared_from_this(), incarnation] {
    for (const auto& choice : self->choices_) choice->WorkerLost(incarnation);
  });
}

FlowStage RequestRun::stage() const {
  std::optional<FlowStage> least;
  for (const auto& choice : choices_) {
    if (!choice->ended()) least = std::min(least.value_or(choice->stage()), choice->stage());
  }
  return least.value_or(choices_.empty() ? FlowStage::kQueued : choices_.front()->stage());
}

void RequestRun::StageMayHaveChanged() {
  if (!delivery_.ended()) record_.ShowStage(stage());
}

// The first prefill worker that has computed the turn holds the session's history from now on.
void RequestRun::HistoryAt(const WorkerRef& prefill, const internal::v1::FirstToken& first) {
  if (!plan_.turn.has_value() || std::exchange(home_known_, true)) return;
  services_->cluster->RememberPrefix(plan_.prefix, prefill.incarnation);
  SessionHome home{prefill.name, prefill.incarnation};
  const std::optional<SessionHome>& before = plan_.turn->home;
  record_.TurnServed(before.has_value() && *before != home, first.history_outcome());
  if (before == home) return;
  services_->pool->Submit(
      [self = shared_from_this(), home] { self->session_.StoreHome(*self->plan_.turn, home); });
}

void RequestRun::ChoiceEnded() {
  if (std::all_of(choices_.begin(), choices_.end(), [](const auto& c) { return c->ended(); })) Commit();
}

void RequestRun::Commit() {
  if (!plan_.turn.has_value()) return SendDone();
  const ChoiceRun& only = *choices_.front();
  Turn turn = FinishedTurn(plan_, only.text(), only.Outcome().finish_reason());
  services_->pool->Submit([self = shared_from_this(), turn = std::move(turn)] {
    absl::Status status = self->session_.Commit(*self->plan_.turn, turn);
    self->strand_.Post([self, status] { status.ok() ? self->SendDone() : self->delivery_.Finish(status); });
  });
}

void RequestRun::SendDone() {
  v1::ChatEvent event;
  v1::Done* done = event.mutable_done();
  for (const auto& choice : choices_) {
    *done->add_choices() = choice->Outcome();
    done->set_attempts(std::max(done->attempts(), choice->attempts()));
  }
  record_.Report(plan_, choices_, done);
  delivery_.Send(std::move(event));
  delivery_.Finish(absl::OkStatus());
}

void RequestRun::SetPaused(bool paused) {
  for (const auto& choice : choices_) choice->SetPaused(paused);
}

void RequestRun::JudgeAt(absl::Time time) {
  services_->timers->At(time, [weak = weak_from_this()] {
    std::shared_ptr<RequestRun> self = weak.lock();
    if (self == nullptr) return;
    RequestRun* run = self.get();
    run->strand_.Post([self = std::move(self)] { self->delivery_.Judge(); });
  });
}

void RequestRun::ClientTooSlow(const absl::Status& status) {
  services_->metrics->slow_clients.Increment();
  GiveUp(status);
}

void RequestRun::Delivered(const absl::Status& status) {
  record_.Ended(status, plan_, choices_, stage());
  for (const auto& choice : choices_) {
    caller_.SpendTokens(static_cast<int64_t>(choice->text().ids().size()));
  }
  caller_.Leave();
  record_.ShowStage(std::nullopt);
  session_.Leave();
  services_->runs->Remove(this);
}

}  // namespace sluice
