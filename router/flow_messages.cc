#include "router/flow_messages.h"

#include <algorithm>

#include "common/rpc/gates_codec.h"
#include "router/compression_codec.h"

namespace sluice {
namespace {

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

internal::v1::SamplingParams SamplingOf(const RequestPlan& plan, int choice) {
  internal::v1::SamplingParams sampling = plan.sampling;
  sampling.set_seed(ChoiceSeed(plan.sampling.seed(), choice));
  return sampling;
}

}  // namespace

internal::v1::GenerateRequest GenerateRequestOf(const OpenDecode& open, const RequestPlan& plan, int choice,
                                                const std::string& handoff_id,
                                                absl::Span<const int32_t> ids) {
  internal::v1::GenerateRequest request;
  request.set_request_id(plan.request_id);
  request.set_handoff_id(handoff_id);
  request.set_attempt(open.attempt);
  *request.mutable_gates() = GatesToProto(plan.gates);
  *request.mutable_sampling() = SamplingOf(plan, choice);
  request.set_prefill_incarnation(open.prefill.incarnation);
  request.mutable_emitted_ids()->Add(ids.begin(), ids.begin() + open.emitted);
  return request;
}

internal::v1::PrefillRequest PrefillRequestOf(const OpenPrefill& open, const RequestPlan& plan, int choice,
                                              const std::string& handoff_id, absl::Span<const int32_t> ids) {
  internal::v1::PrefillRequest request;
  request.set_request_id(plan.request_id);
  request.set_handoff_id(handoff_id);
  request.set_attempt(open.attempt);
  request.set_decode_address(open.decode.address);
  request.set_decode_incarnation(open.decode.incarnation);
  request.mutable_prompt_ids()->Add(plan.prompt_ids.begin(), plan.prompt_ids.end());
  request.mutable_prompt_ids()->Add(ids.begin(), ids.begin() + open.emitted);
  *request.mutable_gates() = GatesToProto(plan.gates);
  *request.mutable_sampling() = SamplingOf(plan, choice);
  if (plan.turn.has_value()) {
    request.set_session_id(plan.turn->session_id);
    request.set_owner(plan.owner);
    request.set_cache_salt(plan.cache_salt);
    request.set_parent_turn_id(plan.turn->parent_turn_id);
    request.set_turn_id(plan.turn->turn_id);
  }
  request.set_turn_tokens(plan.turn_tokens + open.emitted);
  request.set_reuse_kept(open.reuse_kept);
  request.set_emitted(open.emitted);
  request.set_measure(plan.measure && choice == 0);  // one prompt, one figure
  return request;
}

FlowEnd EndOf(const internal::v1::Generated& generated) {
  if (generated.finish() == "stop") return {FlowEnd::kStopId, generated.stop_token_id()};
  if (generated.finish() == "context") return {FlowEnd::kContext, -1};
  return {FlowEnd::kLength, -1};
}

HandoffFailure FailureOf(const internal::v1::HandoffFailed& failed) {
  return {failed.reason(), failed.detail(), failed.retained(), absl::Milliseconds(failed.retry_after_ms())};
}

v1::ChatEvent StartedEvent(const RequestPlan& plan, const std::string& model) {
  v1::ChatEvent event;
  v1::Started* started = event.mutable_started();
  started->set_request_id(plan.request_id);
  if (plan.turn.has_value()) {
    started->set_session_id(plan.turn->session_id);
    started->set_turn_id(plan.turn->turn_id);
  }
  started->set_model(model);
  const int prompt_tokens = static_cast<int>(plan.prompt_ids.size());
  started->set_prompt_tokens(prompt_tokens);
  started->set_max_tokens(plan.sampling.max_tokens());
  *started->mutable_sampling() = EffectiveSampling(plan);
  *started->mutable_compression() = ReportOf(plan);
  return event;
}

v1::ChatEvent ProgressEvent(const ShowProgress& progress) {
  v1::ChatEvent event;
  event.mutable_progress()->set_stage(StageOf(progress.stage));
  event.mutable_progress()->set_processed(progress.processed);
  event.mutable_progress()->set_total(progress.total);
  event.mutable_progress()->set_cached(progress.cached);
  return event;
}

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

}  // namespace sluice
