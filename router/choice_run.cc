#include "router/choice_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "router/flow_messages.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

absl::Status NoLogprobs(absl::string_view role) {
  return absl::InternalError(
      absl::StrCat("the ", role, " worker sent a token without its log-probabilities"));
}

// What a prefill call still has to compute, as this router reckons it into the worker's load.
class LoadLeft {
 public:
  LoadLeft(Cluster* cluster, std::string incarnation, int64_t tokens)
      : cluster_(cluster), incarnation_(std::move(incarnation)), tokens_(tokens) {}
  void Set(int64_t tokens) {
    if (tokens != tokens_) cluster_->AddLoad(incarnation_, 0, tokens - tokens_);
    tokens_ = tokens;
  }

 private:
  Cluster* const cluster_;
  const std::string incarnation_;
  int64_t tokens_;
};

int64_t TokensLeft(int64_t tokens, const internal::v1::PrefillProgress& progress) {
  if (!progress.running() || progress.layers() <= 0) return tokens;
  const int64_t computed = std::max<int64_t>(tokens - progress.cached_tokens(), 0);
  return computed * (progress.layers() - progress.layers_done()) / progress.layers();
}

FlowRequest FlowRequestOf(const RequestPlan& plan, absl::Time deadline) {
  FlowRequest request;
  request.route = RouteQueryOf(plan);
  request.max_tokens = plan.sampling.max_tokens();
  request.min_tokens = plan.sampling.min_tokens();
  request.stop_ids = {plan.sampling.stop_token_ids().begin(), plan.sampling.stop_token_ids().end()};
  request.deadline = deadline;
  return request;
}

}  // namespace

ChoiceRun::ChoiceRun(const RunServices* services, const RequestPlan* plan, int index, absl::Time deadline,
                     StopMatcher stops, Owner* owner)
    : services_(services),
      plan_(*plan),
      index_(index),
      deadline_(deadline),
      owner_(owner),
      handoff_id_(UuidV7()),
      record_(services),
      text_(services->model->tokenizer.get(), std::move(stops), plan->sampling.min_tokens(),
            plan->reply_is_text_of_its_own),
      flow_(FlowRequestOf(*plan, deadline), services->options.flow, services->cluster) {
  if (plan->sampling.logprobs()) logprobs_.emplace(services->model->tokenizer.get());
}

void ChoiceRun::Start() { Act(flow_.Start(services_->clock->Now())); }

void ChoiceRun::WorkerLost(const std::string& incarnation) {
  Act(flow_.WorkerLost(incarnation, services_->clock->Now()));
}

void ChoiceRun::Abandon(const absl::Status& why) { Act(flow_.Abandon(why)); }

void ChoiceRun::SetPaused(bool paused) {
  held_back_ |= paused;
  if (decode_call_ != nullptr) decode_call_->SetPaused(paused);
}

void ChoiceRun::WakeAtTime(absl::Time time) {
  services_->timers->At(time, [weak = std::weak_ptr<ChoiceRun>(Self())] {
    std::shared_ptr<ChoiceRun> self = weak.lock();
    if (self == nullptr) return;
    Strand* strand = self->owner_->strand();
    strand->Post([self = std::move(self)] { self->Act(self->flow_.Wake(self->services_->clock->Now())); });
  });
}

void ChoiceRun::Act(const FlowActions& actions) {
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
      // Of no use later, and one choice's is the prompt's.
      if (index_ == 0 && !owner_->paused()) owner_->Send(ProgressEvent(*progress));
    } else if (auto* wake = std::get_if<WakeAt>(&action)) {
      WakeAtTime(wake->time);
    } else if (auto* complete = std::get_if<Complete>(&action)) {
      SendDelta(text_.Finish());
      end_ = matched_stop_.has_value() ? FlowEnd{FlowEnd::kStopString, -1} : complete->end;
      owner_->ChoiceEnded();
    } else if (auto* fail = std::get_if<Fail>(&action)) {
      owner_->ChoiceFailed(fail->status);
    }
  }
  owner_->StageMayHaveChanged();
}

void ChoiceRun::Open(const OpenDecode& open) {
  record_.Paired();
  auto request = GenerateRequestOf(open, plan_, index_, handoff_id_, text_.ids());
  auto stub = internal::v1::DecodeWorker::NewStub(services_->channels->To(open.decode.address));
  services_->cluster->AddLoad(open.decode.incarnation, 1, 0);
  auto self = Self();
  decode_call_ = WorkerCall<internal::v1::GenerateEvent>::Start(
      owner_->strand(), deadline_ - services_->clock->Now(),
      [&](auto* context, auto* reactor) { stub->async()->Generate(context, &request, reactor); },
      [self, attempt = open.attempt, worker = open.decode](const internal::v1::GenerateEvent& event) {
        if (event.has_generated() && attempt == self->flow_.attempt()) {
          self->TellSpeed(worker, event.generated());
        }
        self->OnDecodeEvent(attempt, event);
      },
      [self, attempt = open.attempt, incarnation = open.decode.incarnation](const absl::Status& status) {
        self->services_->cluster->AddLoad(incarnation, -1, 0);
        self->Act(self->flow_.DecodeEnded(attempt, status, self->services_->clock->Now()));
      });
  decode_call_->SetPaused(owner_->paused());
}

void ChoiceRun::Open(const OpenPrefill& open) {
  auto request = PrefillRequestOf(open, plan_, index_, handoff_id_, text_.ids());
  auto stub = internal::v1::PrefillWorker::NewStub(services_->channels->To(open.prefill.address));
  const int64_t tokens = open.reuse_kept ? 0 : request.prompt_ids_size();
  services_->cluster->AddLoad(open.prefill.incarnation, 1, tokens);
  const auto left = std::make_shared<LoadLeft>(services_->cluster, open.prefill.incarnation, tokens);
  auto self = Self();
  prefill_call_ = WorkerCall<internal::v1::PrefillEvent>::Start(
      owner_->strand(), deadline_ - services_->clock->Now(),
      [&](auto* context, auto* reactor) { stub->async()->Prefill(context, &request, reactor); },
      [self, left, tokens, attempt = open.attempt,
       worker = open.prefill](const internal::v1::PrefillEvent& event) {
        if (event.has_progress()) left->Set(TokensLeft(tokens, event.progress()));
        if (event.has_first_token()) {
          left->Set(0);
          self->owner_->HistoryAt(worker, event.first_token());
        }
        self->OnPrefillEvent(attempt, event);
      },
      [self, left, attempt = open.attempt,
       incarnation = open.prefill.incarnation](const absl::Status& status) {
        left->Set(0);
        self->services_->cluster->AddLoad(incarnation, -1, 0);
        self->Act(self->flow_.PrefillEnded(attempt, status, self->services_->clock->Now()));
      });
}

void ChoiceRun::TellSpeed(const WorkerRef& decode, const internal::v1::Generated& generated) {
  if (held_back_) return;
  services_->cluster->TellSpeed(decode.incarnation, generated.steps(),
                                absl::Seconds(generated.decode_seconds()));
}

void ChoiceRun::OnDecodeEvent(uint32_t attempt, const internal::v1::GenerateEvent& event) {
  absl::Time now = services_->clock->Now();
  switch (event.event_case()) {
    case internal::v1::GenerateEvent::kRegistered:
      return Act(flow_.Registered(attempt));
    case internal::v1::GenerateEvent::kReceiving:
      return Act(flow_.Receiving(attempt));
    case internal::v1::GenerateEvent::kTokens:
      if (!TakeLogprobs(
              attempt, event.tokens().index(), event.tokens().ids_size(),
              {event.tokens().logprobs().data(), static_cast<size_t>(event.tokens().logprobs_size())})) {
        decode_call_->Cancel();
        return Act(flow_.DecodeEnded(attempt, NoLogprobs("decode"), now));
      }
      return Act(flow_.Tokens(attempt, event.tokens().index(),
                              {event.tokens().ids().begin(), event.tokens().ids().end()}, now));
    case internal::v1::GenerateEvent::kGenerated:
      if (attempt == flow_.attempt()) record_.Generated(event.generated());
      return Act(flow_.Generated(attempt, EndOf(event.generated()), now));
    default:
      return;
  }
}

void ChoiceRun::OnPrefillEvent(uint32_t attempt, const internal::v1::PrefillEvent& event) {
  absl::Time now = services_->clock->Now();
  switch (event.event_case()) {
    case internal::v1::PrefillEvent::kProgress:
      return Act(flow_.Progress(attempt, event.progress().running(), event.progress().layers_done(),
                                event.progress().layers(), event.progress().cached_tokens()));
    case internal::v1::PrefillEvent::kFirstToken: {
      const internal::v1::FirstToken& first = event.first_token();
      const internal::v1::TokenLogprobs* logprobs = &first.logprobs();
      if (!TakeLogprobs(attempt, flow_.first_index(), 1, {&logprobs, first.has_logprobs() ? size_t{1} : 0})) {
        prefill_call_->Cancel();
        return Act(flow_.PrefillEnded(attempt, NoLogprobs("prefill"), now));
      }
      record_.FirstToken(first);
      return Act(flow_.FirstToken(attempt, first.token_id(), first.ends(), first.stopped(), now));
    }
    case internal::v1::PrefillEvent::kHandedOff:
      if (attempt == flow_.attempt()) record_.HandedOff(event.handed_off());
      return Act(flow_.HandedOff(attempt, event.handed_off().measuring(), now));
    case internal::v1::PrefillEvent::kMeasured:
      if (attempt == flow_.attempt()) record_.Measured(event.measured());
      return Act(flow_.Measured(attempt, now));
    case internal::v1::PrefillEvent::kHandoffFailed:
      return Act(flow_.HandoffFailed(attempt, FailureOf(event.handoff_failed()), now));
    default:
      return;
  }
}

bool ChoiceRun::TakeLogprobs(uint32_t attempt, int index, int tokens,
                             absl::Span<const internal::v1::TokenLogprobs* const> logprobs) {
  if (!logprobs_.has_value() || attempt != flow_.attempt()) return true;
  if (static_cast<int>(logprobs.size()) != tokens) return false;
  for (int i = 0; i < tokens; ++i) {
    if (index + i >= flow_.emitted()) logprobs_->Hold(index + i, *logprobs[i]);
  }
  return true;
}

void ChoiceRun::Emit(const std::vector<int32_t>& ids) {
  if (matched_stop_.has_value()) return;
  TokenText::Piece sum;
  const size_t before = text_.ids().size();
  for (int32_t id : ids) {
    int index = static_cast<int>(text_.ids().size());
    const auto& stop_ids = plan_.sampling.stop_token_ids();
    bool silent =
        index + 1 > plan_.sampling.min_tokens() && std::count(stop_ids.begin(), stop_ids.end(), id) > 0;
    TokenText::Piece piece = text_.Push(id, silent);
    sum.text += piece.text;
    sum.ids.insert(sum.ids.end(), piece.ids.begin(), piece.ids.end());
    if (piece.stop.has_value()) {
      matched_stop_ = piece.stop;
      break;
    }
  }
  record_.Emitted(ids.size(), text_.ids().size() - before);
  SendDelta(sum);
  if (matched_stop_.has_value()) Act(flow_.StopString());
}

void ChoiceRun::SendDelta(const TokenText::Piece& piece) {
  if (piece.ids.empty()) return;
  v1::ChatEvent event;
  event.mutable_delta()->set_index(index_);
  event.mutable_delta()->set_text(piece.text);
  event.mutable_delta()->mutable_token_ids()->Add(piece.ids.begin(), piece.ids.end());
  if (logprobs_.has_value()) logprobs_->MoveTo(piece.ids, event.mutable_delta());
  record_.DeltaSent();
  owner_->Send(std::move(event));
}

v1::Choice ChoiceRun::Outcome() const {
  v1::Choice choice;
  choice.set_index(index_);
  choice.set_finish_reason(FinishReasonOf(*end_, plan_));
  if (end_->reason == FlowEnd::kStopId) choice.set_matched_stop(absl::StrCat(end_->stop_id));
  if (matched_stop_.has_value()) choice.set_matched_stop(plan_.stop[*matched_stop_]);
  return choice;
}

}  // namespace sluice
