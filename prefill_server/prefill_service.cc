#include "prefill_server/prefill_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/event_stream.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/sampling_codec.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

namespace pb = internal::v1;

constexpr absl::Duration kLongestAttempt = absl::Hours(1);  // for a router that set no deadline

class EventSink final : public PrefillEvents {
 public:
  EventSink(std::shared_ptr<EventStream<pb::PrefillEvent>> events, bool measures)
      : events_(std::move(events)), measures_(measures) {}

  void OnProgress(bool running, int layers_done, int layers, int cached_tokens) override {
    pb::PrefillEvent event;
    pb::PrefillProgress* out = event.mutable_progress();
    out->set_running(running);
    out->set_layers_done(layers_done);
    out->set_layers(layers);
    out->set_cached_tokens(cached_tokens);
    // A reader that lags needs only the latest.
    events_->PushOrMerge(event, [&](pb::PrefillEvent* last) {
      if (!last->has_progress()) return false;
      *last = event;
      return true;
    });
  }
  void OnFirstToken(const FirstToken& token) override {
    pb::PrefillEvent event;
    pb::FirstToken* out = event.mutable_first_token();
    out->set_token_id(token.id);
    out->set_ends(token.stop != StopReason::kNone);
    out->set_stopped(token.stop == StopReason::kStopId);
    out->set_queue_seconds(absl::ToDoubleSeconds(token.queued));
    out->set_prefill_seconds(absl::ToDoubleSeconds(token.computed));
    out->set_cached_tokens(token.cached_tokens);
    out->set_history_outcome(token.history_outcome);
    if (token.logprobs.has_value()) *out->mutable_logprobs() = LogprobsToProto(*token.logprobs);
    events_->Push(std::move(event));
    if (token.stop != StopReason::kNone) events_->Finish(absl::OkStatus());
  }
  void OnHandedOff(const HandedOff& result) override {
    pb::PrefillEvent event;
    pb::HandedOff* out = event.mutable_handed_off();
    out->mutable_kept()->set_kept_min(result.kept_min);
    out->mutable_kept()->set_kept_mean(result.kept_mean);
    out->mutable_kept()->set_bytes_full(result.bytes_full);
    out->mutable_kept()->set_bytes_kept(result.bytes_kept);
    out->set_wire_bytes(static_cast<uint64_t>(result.wire_bytes));
    out->set_transfer_seconds(absl::ToDoubleSeconds(result.exposed));
    out->set_measuring(measures_);
    events_->Push(std::move(event));
    if (!measures_) events_->Finish(absl::OkStatus());
  }
  void OnMeasured(const CompressionLoss& loss) override {
    pb::PrefillEvent event;
    v1::CompressionLoss* out = event.mutable_measured();
    out->mutable_retained_mass()->Add(loss.retained_mass.begin(), loss.retained_mass.end());
    out->set_top1_tokens(loss.top1_tokens);
    out->set_top1_agreed(loss.top1_agreed);
    out->set_skipped(loss.skipped);
    events_->Push(std::move(event));
    events_->Finish(absl::OkStatus());
  }
  void OnHandoffFailed(HandoffReason reason, const std::string& detail, bool retained,
                       absl::Duration retry_after) override {
    pb::PrefillEvent event;
    pb::HandoffFailed* out = event.mutable_handoff_failed();
    out->set_reason(std::string(ReasonName(reason)));
    out->set_detail(detail);
    out->set_retained(retained);
    out->set_retry_after_ms(absl::ToInt64Milliseconds(retry_after));
    events_->Push(std::move(event));
    events_->Finish(absl::OkStatus());
  }
  void OnError(const absl::Status& status) override { events_->Finish(status); }

 private:
  const std::shared_ptr<EventStream<pb::PrefillEvent>> events_;
  const bool measures_;
};

}  // namespace

absl::StatusOr<PrefillRequest> PrefillService::Check(const pb::PrefillRequest& request) const {
  PrefillRequest out;
  out.handoff_id = request.handoff_id();
  if (out.handoff_id.empty()) return absl::InvalidArgumentError("handoff_id: missing");
  const int n = request.prompt_ids_size();
  if (n == 0 || n >= model_->shape().context) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_ids: ", n, " tokens; 1 to ", model_->shape().context - 1, " fit the context"));
  }
  for (int32_t id : request.prompt_ids()) {
    if (id < 0 || id >= model_->shape().vocab) {
      return absl::InvalidArgumentError(absl::StrCat("prompt_ids: ", id, " is outside the vocabulary"));
    }
  }
  for (int32_t id : request.sampling().forced_token_ids()) {
    if (id < 0 || id >= model_->shape().vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.forced_token_ids: ", id, " is outside the vocabulary"));
    }
  }
  if (request.emitted() < 0 || request.emitted() >= n) {
    return absl::InvalidArgumentError("emitted: must be less than the prompt's length");
  }
  out.prompt_ids.assign(request.prompt_ids().begin(), request.prompt_ids().end());
  SLUICE_ASSIGN_OR_RETURN(out.gates, GatesFromProto(request.gates()));
  out.sampling = SamplingFromProto(request.sampling());
  out.emitted = request.emitted();
  out.session_id = request.session_id();
  out.partition = PartitionOf(request.owner(), request.cache_salt());
  out.parent_turn_id = request.parent_turn_id();
  out.turn_id = request.turn_id();
  out.measure = request.measure();
  return out;
}

grpc::ServerWriteReactor<pb::PrefillEvent>* PrefillService::Prefill(grpc::CallbackServerContext* context,
                                                                    const pb::PrefillRequest* request) {
  const HandoffKey key{request->handoff_id(), request->attempt()};
  grpc::ServerWriteReactor<pb::PrefillEvent>* reactor = nullptr;
  // Filled before gRPC gets the reactor, so before any cancel.
  auto running = std::make_shared<std::weak_ptr<PrefillJob>>();
  auto events = EventStream<pb::PrefillEvent>::Open(
      [this, key, running] {
        std::shared_ptr<PrefillJob> job = running->lock();
        if (job != nullptr && job->key() == key) job->cancelled = true;
        send_loop_->Cancel(key);
      },
      &reactor);
  absl::StatusOr<PrefillRequest> checked = Check(*request);
  Attempt attempt;
  attempt.number = request->attempt();
  attempt.decode_address = request->decode_address();
  attempt.decode_incarnation = request->decode_incarnation();
  const absl::Duration left = absl::FromChrono(context->deadline()) - absl::Now();
  attempt.deadline = clock_->Now() + std::min(left, kLongestAttempt);
  attempt.events = std::make_shared<EventSink>(events, request->measure());
  if (!checked.ok()) {
    events->Finish(checked.status());
    return reactor;
  }
  if (request->reuse_kept()) {
    send_loop_->Retry(key.id, std::move(attempt));
    return reactor;
  }
  auto job = std::make_shared<PrefillJob>(*std::move(checked), std::move(attempt), clock_->Now());
  *running = job;
  absl::Status submitted = prefill_loop_->Submit(job);
  if (!submitted.ok()) events->Finish(submitted);
  return reactor;
}

grpc::ServerUnaryReactor* PrefillService::Forget(grpc::CallbackServerContext* context,
                                                 const pb::ForgetRequest* request,
                                                 pb::ForgetResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool taken = prefill_loop_->WithHistory([=](PrefixTree& history) {
    size_t freed = 0;
    if (request->everything()) {
      freed = history.ForgetAll();
    } else {
      const std::vector<std::string> turn_ids(request->turn_ids().begin(), request->turn_ids().end());
      std::vector<PrefixTree::Forgotten> prompts;
      for (const pb::ForgottenPrompt& prompt : request->prompts()) {
        prompts.push_back(
            {{prompt.ids().data(), static_cast<size_t>(prompt.ids_size())}, prompt.keep_tokens()});
      }
      freed = history.Forget(request->owner(), turn_ids, prompts);
    }
    response->set_freed_bytes(static_cast<int64_t>(freed));
    reactor->Finish(grpc::Status::OK);
  });
  if (!taken) {
    reactor->Finish(
        ToGrpcStatus(absl::ResourceExhaustedError("too much to forget at once; try again later")));
  }
  return reactor;
}

}  // namespace sluice
