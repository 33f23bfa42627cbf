// Role: the arithmetic of a load's records: percentiles, rates, goodput. Names are those of vLLM's `bench
// serve`. Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/load_record.h"

namespace sluice {

inline constexpr int kPercentiles[] = {50, 90, 95, 99};

// ascending: not empty. percent in [0, 100], linear between the two nearest ranks.
double Percentile(const std::vector<double>& ascending, double percent);

// All zero where there is no value.
struct Statistics {
  size_t count = 0;
  double mean = 0, std = 0, min = 0, max = 0;  // std: of the population
  double percentiles[std::size(kPercentiles)] = {};
};
Statistics StatisticsOf(std::vector<double> values);

// What a request must keep to count as good; unset: no bound.
struct Slo {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms.has_value() || tpot_ms.has_value() || e2el_ms.has_value(); }
};
// A failed request is never good; a reply of one token has no TPOT to miss.
bool Meets(const Slo& slo, const RequestRecord& record);

struct ErrorCount {
  int count = 0;
  std::string first_message;
};

struct LoadSummary {
  int completed = 0, failed = 0, interrupted = 0;
  double duration = 0;                                                               // seconds
  int64_t total_input_tokens = 0, total_cached_tokens = 0, total_output_tokens = 0;  // of completed requests
  double request_throughput = 0;                      // completed requests a second
  double output_throughput = 0;                       // tokens a second
  double total_token_throughput = 0;                  // input and output
  int good = 0;                                       // completed within the SLO
  double request_goodput = 0;                         // a second
  Statistics ttft_ms, tpot_ms, itl_ms, e2el_ms;       // of completed requests
  Statistics send_delay_ms;                           // arrival to send, of every request
  double mean_kept_tokens = 0, mean_read_tokens = 0;  // per KV head; read 0: all kept
  double mean_kv_bytes_full = 0, mean_kv_bytes_kept = 0, mean_wire_bytes = 0;
  std::map<std::string, ErrorCount> errors;  // by code
  std::map<std::string, int> methods;        // what was applied, with why a gate was off: completed requests
};
LoadSummary Summarize(const std::vector<RequestRecord>& records, absl::Duration duration, const Slo& slo);

}  // namespace sluice
