#include "common/metrics/router_metrics.h"

#include "common/metrics/buckets.h"
#include "common/metrics/shared_families.h"

namespace sluice {
namespace {

const std::vector<std::string>& GrpcCodes() {
  static const auto* codes = new std::vector<std::string>{
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return *codes;
}

Counter Tokens(MetricsRegistry* registry, const char* kind) {
  return registry->AddCounter(
      "sluice_tokens_total",
      "Tokens of finished requests: prompt includes cached, cached were not computed again.",
      {{"kind", kind}});
}

Counter SessionTurns(MetricsRegistry* registry, const char* outcome) {
  return registry->AddCounter(
      "sluice_session_turns_total",
      "Turns of sessions: on kept history, computed anew, or away from the home worker.",
      {{"outcome", outcome}});
}

Gauge Sessions(MetricsRegistry* registry, const char* state) {
  return registry->AddGauge("sluice_sessions", "Stored sessions; busy while a turn runs.",
                            {{"state", state}});
}

WorkerStateGauges Workers(MetricsRegistry* registry, const char* role) {
  auto gauge = [&](const char* state) {
    return registry->AddGauge("sluice_worker_state", "Workers by role and state.",
                              {{"role", role}, {"state", state}});
  };
  return {gauge("joining"), gauge("ready"), gauge("draining"), gauge("lost")};
}

}  // namespace

RouterMetrics::RouterMetrics(MetricsRegistry* registry, const RouterLabels& labels)
    : requests(registry->AddCounters("sluice_requests_total",
                                     "Accepted requests that ended, by method and code.", "method",
                                     labels.methods, "code", GrpcCodes())),
      in_flight_queued(families::InFlight(registry, "queued")),
      in_flight_prefill(families::InFlight(registry, "prefill")),
      in_flight_transfer(families::InFlight(registry, "transfer")),
      in_flight_decode(families::InFlight(registry, "decode")),
      time_to_first_token_seconds(
          registry->AddHistogram("sluice_time_to_first_token_seconds",
                                 "From the whole request at the router to its first delta handed to gRPC; "
                                 "failed requests observe none.",
                                 buckets::FirstToken())),
      inter_token_seconds(registry->AddHistogram(
          "sluice_inter_token_seconds", "Time between two tokens of one request.", buckets::InterToken())),
      time_per_output_token_seconds(registry->AddHistogram(
          "sluice_time_per_output_token_seconds",
          "Mean time per token after the first, one observation per answer.", buckets::InterToken())),
      request_seconds(registry->AddHistogram("sluice_request_seconds",
                                             "Time from the whole request to its end.", buckets::Request())),
      queue_seconds(families::QueueSeconds(registry, "router")),
      prompt_tokens(
          registry->AddHistogram("sluice_prompt_tokens", "Prompt tokens per request.", buckets::Tokens())),
      completion_tokens(registry->AddHistogram("sluice_completion_tokens", "Emitted tokens per answer.",
                                               buckets::Tokens())),
      tokens_prompt(Tokens(registry, "prompt")),
      tokens_cached(Tokens(registry, "cached")),
      tokens_completion(Tokens(registry, "completion")),
      compression_fallbacks(registry->AddCounters("sluice_compression_fallback_total",
                                                  "Requests for which a gate was switched off, by reason.",
                                                  "reason", labels.fallback_reasons)),
      session_turns_warm(SessionTurns(registry, "warm")),
      session_turns_cold(SessionTurns(registry, "cold")),
      session_turns_remote(SessionTurns(registry, "remote")),
      sessions_idle(Sessions(registry, "idle")),
      sessions_busy(Sessions(registry, "busy")),
      prefill_workers(Workers(registry, "prefill")),
      decode_workers(Workers(registry, "decode")),
      cancelled_queued(families::Cancelled(registry, "queued")),
      cancelled_prefill(families::Cancelled(registry, "prefill")),
      cancelled_transfer(families::Cancelled(registry, "transfer")),
      cancelled_decode(families::Cancelled(registry, "decode")),
      slow_clients(
          registry->AddCounter("sluice_slow_client_total", "Streams ended because the client did not read.")),
      admission_refused(registry->AddCounters("sluice_admission_refused_total",
                                              "Requests refused before anything was computed, by reason.",
                                              "reason", {"queue_full", "draining", "slo_ttft", "slo_tpot"})),
      slo_budget_lowered(
          registry->AddCounter("sluice_slo_budget_lowered_total",
                               "Requests taken with a lower budget, to keep their time to first token.")),
      ready(families::Ready(registry)) {}

}  // namespace sluice
