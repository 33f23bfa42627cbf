#include "router/request_record.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "router/compression_codec.h"

namespace sluice {
namespace {

constexpr size_t kMaxLoggedError = 512;  // bytes; a client chooses parts of it

int TokensOf(const RequestRecord::Choices& choices) {
  int tokens = 0;
  for (const auto& choice : choices) tokens += choice->record().tokens();
  return tokens;
}

// Of any choice.
std::optional<absl::Time> FirstDeltaOf(const RequestRecord::Choices& choices) {
  std::optional<absl::Time> first;
  for (const auto& choice : choices) {
    const std::optional<absl::Time> delta = choice->record().first_delta();
    if (delta.has_value()) first = std::min(first.value_or(*delta), *delta);
  }
  return first;
}

}  // namespace

RequestRecord::RequestRecord(const RunServices* services, std::string method)
    : services_(services), method_(std::move(method)), accepted_(services->clock->Now()) {}

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

void RequestRecord::Report(const RequestPlan& plan, const Choices& choices, v1::Done* done) const {
  int prompt_tokens = static_cast<int>(plan.prompt_ids.size());
  v1::Usage* usage = done->mutable_usage();
  usage->set_prompt_tokens(prompt_tokens);
  usage->set_cached_tokens(choices.front()->record().first().cached_tokens());
  usage->set_completion_tokens(TokensOf(choices));

  v1::Timings* timings = done->mutable_timings();
  v1::CompressionReport report = ReportOf(plan);
  bool kept_known = false;
  for (const auto& choice : choices) {
    const ChoiceRecord& record = choice->record();
    const absl::Duration unpaired = record.paired().value_or(accepted_) - accepted_;
    const internal::v1::HandedOff handed_off = record.handed_off().value_or(internal::v1::HandedOff());
    timings->set_queue_seconds(
        std::max(timings->queue_seconds(), absl::ToDoubleSeconds(unpaired) + record.first().queue_seconds()));
    timings->set_prefill_seconds(std::max(timings->prefill_seconds(), record.first().prefill_seconds()));
    timings->set_transfer_seconds(std::max(timings->transfer_seconds(), handed_off.transfer_seconds()));
    timings->set_decode_seconds(std::max(timings->decode_seconds(), record.generated().decode_seconds()));
    report.set_wire_bytes(report.wire_bytes() + handed_off.wire_bytes());
    if (record.handed_off().has_value() &&
        !std::exchange(kept_known, true)) {  // of the prompt: each choice's
      report.set_kept_tokens_min(handed_off.kept().kept_min());
      report.set_kept_tokens_mean(handed_off.kept().kept_mean());
      report.set_kv_bytes_full(handed_off.kept().bytes_full());
      report.set_kv_bytes_kept(handed_off.kept().bytes_kept());
    }
    if (record.loss().has_value()) *report.mutable_loss() = *record.loss();
  }
  const absl::Time first_delta = FirstDeltaOf(choices).value_or(accepted_);
  timings->set_first_token_seconds(absl::ToDoubleSeconds(first_delta - accepted_));
  timings->set_total_seconds(SecondsSinceAccepted());
  *done->mutable_compression() = std::move(report);
}

void RequestRecord::Ended(const absl::Status& status, const RequestPlan& plan, const Choices& choices,
                          FlowStage stage) {
  const RouterMetrics& metrics = *services_->metrics;
  std::string code = absl::StatusCodeToString(status.code());
  metrics.requests.At(method_).At(code).Increment();
  services_->stats->requests += 1;
  double total = SecondsSinceAccepted();
  metrics.request_seconds.Observe(total);
  int attempts = 0;
  for (const auto& choice : choices) {
    attempts = std::max(attempts, choice->attempts());
    if (auto paired = choice->record().paired(); paired.has_value()) {
      metrics.queue_seconds.Observe(absl::ToDoubleSeconds(*paired - accepted_));
    }
  }
  spdlog::info(
      "ended request={} method={} code={} tokens={} attempts={} seconds={:.3f}{}{}",
      plan.request_id.empty() ? "-" : plan.request_id, method_, code, TokensOf(choices), attempts, total,
      status.ok() ? "" : " error=", absl::Utf8SafeCEscape(status.message().substr(0, kMaxLoggedError)));
  if (status.ok()) return CountServed(plan, choices);
  services_->stats->failed += 1;
  if (absl::IsCancelled(status)) CountCancelled(stage);
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

void RequestRecord::CountServed(const RequestPlan& plan, const Choices& choices) {
  const RouterMetrics& metrics = *services_->metrics;
  if (auto first = FirstDeltaOf(choices); first.has_value()) {
    metrics.time_to_first_token_seconds.Observe(absl::ToDoubleSeconds(*first - accepted_));
  }
  for (const auto& choice : choices) {
    const ChoiceRecord& record = choice->record();
    metrics.completion_tokens.Observe(record.tokens());
    if (record.first_delta().has_value() && record.tokens() > 1) {
      metrics.time_per_output_token_seconds.Observe(
          absl::ToDoubleSeconds(*record.last_emitted() - *record.first_delta()) / (record.tokens() - 1));
    }
  }
  int cached = choices.front()->record().first().cached_tokens();
  metrics.prompt_tokens.Observe(plan.prompt_ids.size());
  metrics.tokens_prompt.Increment(plan.prompt_ids.size());
  metrics.tokens_cached.Increment(cached);
  metrics.tokens_completion.Increment(TokensOf(choices));
  services_->stats->prompt_tokens += plan.prompt_ids.size();
  services_->stats->cached_tokens += cached;
  services_->stats->completion_tokens += TokensOf(choices);
  for (OffCause cause : plan.gates.off_causes) {
    metrics.compression_fallbacks.At(OffCauseName(cause)).Increment();
  }
}

}  // namespace sluice
