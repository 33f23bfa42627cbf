// Role: what the router measures: everything a client can feel, and the state of the pools.
// Threads: any.
//
// Time to first token starts when the router has the whole request and ends when the first Delta is handed to
// gRPC; a failed request observes none. Every accepted request ends in exactly one sluice_requests_total.
#pragma once

#include <string>
#include <vector>

#include "common/metrics/metrics.h"

namespace sluice {

// The values that lists elsewhere own; anything else counts as "other".
struct RouterLabels {
  std::vector<std::string> methods;           // RPC names: Chat, ChatStream, ...
  std::vector<std::string> fallback_reasons;  // why a gate was switched off
};

// Workers of one role, by state. `lost`: the lease ran out and the worker has not come back yet.
struct WorkerStateGauges {
  Gauge joining, ready, draining, lost;
};

struct RouterMetrics {
  RouterMetrics(MetricsRegistry* registry, const RouterLabels& labels);

  Labeled<Labeled<Counter>> requests;  // .At(method).At(code), code as gRPC spells it: OK, NOT_FOUND, ...
  Gauge in_flight_queued, in_flight_prefill, in_flight_transfer, in_flight_decode;
  Histogram time_to_first_token_seconds;
  Histogram inter_token_seconds;
  Histogram time_per_output_token_seconds;  // (last - first token) / (tokens - 1), once per answer
  Histogram request_seconds;
  Histogram queue_seconds;  // until a pair was chosen
  Histogram prompt_tokens, completion_tokens;
  Counter tokens_prompt, tokens_cached, tokens_completion;
  Labeled<Counter> compression_fallbacks;  // reason
  Counter session_turns_warm, session_turns_cold, session_turns_remote;
  Gauge sessions_idle, sessions_busy;  // busy: a turn is running
  WorkerStateGauges prefill_workers, decode_workers;
  Counter cancelled_queued, cancelled_prefill, cancelled_transfer, cancelled_decode;
  Counter slow_clients;
  Labeled<Counter> admission_refused;  // reason: queue_full, draining, slo_ttft, slo_tpot
  Counter slo_budget_lowered;
  Gauge ready;
};

}  // namespace sluice
