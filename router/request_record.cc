#include "router/request_record.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "router/compression_codec.h"

namespace sluice {
namespace {

constexpr size_t kMaxLoggedError = 512;  // bytes; a client chooses parts of it

}  // namespace

RequestRecord::RequestRecord(const RunServices* services, std::string method)
    : services_(services), method_(std::move(method)), accepted_(services->clock->Now()) {}

void RequestRecord::Paired() {
  if (!paired_.has_value()) paired_ = services_->clock->Now();
}

void RequestRecord::FirstToken(const internal::v1::FirstToken& first) {
  if (!first_.has_value()) first_ = first;
}

void RequestRecord::Emitted(size_t tokens) {
  absl::Time now = services_->clock->Now();
  if (last_emitted_.has_value()) {
    services_->metrics->inter_token_seconds.Observe(absl::ToDoubleSeconds(now - *last_emitted_) / tokens);
  }
  last_emitted_ = now;
}

void RequestRecord::DeltaSent() {
  if (!first_delta_.has_value()) first_delta_ = services_->clock->Now();
}

void RequestRecord::TurnServed(bool away_from_home, const std::string& history_outcome) {
  const RouterMetrics& metrics = *services_->metrics;
  if (away_from_home) {
    metrics.session_turns_remote.Increment();
  } else if (history_outcome == "warm") {
    metrics.session_turns_warm.Increment();
  } else {
    metrics.session_turns_cold.Increment();
  }
}

void RequestRecord::ShowStage(std::optional<FlowStage> stage) {
  if (stage == stage_) return;
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
  if (stage_.has_value()) gauge(*stage_).Add(-1);
  if (stage.has_value()) gauge(*stage).Add(1);
  stage_ = stage;
}

double RequestRecord::SecondsSinceAccepted() const {
  return absl::ToDoubleSeconds(services_->clock->Now() - accepted_);
}

void RequestRecord::Report(const RequestPlan& plan, int emitted, v1::Done* done) const {
  internal::v1::FirstToken first = first_.value_or(internal::v1::FirstToken());
  int prompt_tokens = static_cast<int>(plan.prompt_ids.size());
  done->mutable_usage()->set_prompt_tokens(prompt_tokens);
  done->mutable_usage()->set_cached_tokens(first.cached_tokens());
  done->mutable_usage()->set_completion_tokens(emitted);

  v1::Timings* timings = done->mutable_timings();
  timings->set_queue_seconds(absl::ToDoubleSeconds(paired_.value_or(accepted_) - accepted_) +
                             first.queue_seconds());
  timings->set_prefill_seconds(first.prefill_seconds());
  timings->set_transfer_seconds(handed_off_.transfer_seconds());
  timings->set_first_token_seconds(absl::ToDoubleSeconds(first_delta_.value_or(accepted_) - accepted_));
  timings->set_decode_seconds(generated_.decode_seconds());
  timings->set_total_seconds(SecondsSinceAccepted());

  v1::CompressionReport report = ReportOf(plan.gates, prompt_tokens);
  report.set_kept_tokens_min(handed_off_.kept().kept_min());
  report.set_kept_tokens_mean(handed_off_.kept().kept_mean());
  report.set_kv_bytes_full(handed_off_.kept().bytes_full());
  report.set_kv_bytes_kept(handed_off_.kept().bytes_kept());
  report.set_wire_bytes(handed_off_.wire_bytes());
  if (loss_.has_value()) *report.mutable_loss() = *loss_;
  *done->mutable_compression() = std::move(report);
}

void RequestRecord::Ended(const absl::Status& status, const RequestPlan& plan, const RequestFlow* flow,
                          const TokenText* text) {
  const RouterMetrics& metrics = *services_->metrics;
  std::string code = absl::StatusCodeToString(status.code());
  metrics.requests.At(method_).At(code).Increment();
  services_->stats->requests += 1;
  double total = SecondsSinceAccepted();
  metrics.request_seconds.Observe(total);
  if (paired_.has_value()) metrics.queue_seconds.Observe(absl::ToDoubleSeconds(*paired_ - accepted_));
  int emitted = text == nullptr ? 0 : static_cast<int>(text->ids().size());
  spdlog::info("ended request={} method={} code={} tokens={} attempts={} seconds={:.3f}{}{}",
               plan.request_id.empty() ? "-" : plan.request_id, method_, code, emitted,
               flow == nullptr ? 0 : flow->attempt(), total, status.ok() ? "" : " error=",
               absl::Utf8SafeCEscape(status.message().substr(0, kMaxLoggedError)));
  if (status.ok()) return CountServed(plan, emitted);
  services_->stats->failed += 1;
  if (absl::IsCancelled(status)) CountCancelled(flow == nullptr ? FlowStage::kQueued : flow->stage());
}

void RequestRecord::CountCancelled(FlowStage stage) {
  switch (stage) {
    case FlowStage::kQueued:
      return services_->metrics->cancelled_queued.Increment();
    case FlowStage::kPrefill:
      return services_->metrics->cancelled_prefill.Increment();
    case FlowStage::kTransfer:
      return services_->metrics->cancelled_transfer.Increment();
    case FlowStage::kDecode:
      return services_->metrics->cancelled_decode.Increment();
  }
}

void RequestRecord::CountServed(const RequestPlan& plan, int emitted) {
  const RouterMetrics& metrics = *services_->metrics;
  int cached = first_.has_value() ? first_->cached_tokens() : 0;
  if (first_delta_.has_value()) {
    metrics.time_to_first_token_seconds.Observe(absl::ToDoubleSeconds(*first_delta_ - accepted_));
    if (emitted > 1) {
      metrics.time_per_output_token_seconds.Observe(absl::ToDoubleSeconds(*last_emitted_ - *first_delta_) /
                                                    (emitted - 1));
    }
  }
  metrics.prompt_tokens.Observe(plan.prompt_ids.size());
  metrics.completion_tokens.Observe(emitted);
  metrics.tokens_prompt.Increment(plan.prompt_ids.size());
  metrics.tokens_cached.Increment(cached);
  metrics.tokens_completion.Increment(emitted);
  services_->stats->prompt_tokens += plan.prompt_ids.size();
  services_->stats->cached_tokens += cached;
  services_->stats->completion_tokens += emitted;
  for (OffCause cause : plan.gates.off_causes) {
    metrics.compression_fallbacks.At(OffCauseName(cause)).Increment();
  }
}

}  // namespace sluice
