// Role: the figures of `sluice top`: those of the boards, from two scrapes of all servers. Threads: pure
// functions.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/metrics_series.h"

namespace sluice {

struct LatencyFigures {
  std::optional<double> p50, p95, p99;  // seconds; nothing: nothing was observed
};

struct TopFigures {
  std::string model;
  double requests_per_second = 0;  // that ended with OK
  double failed_per_second = 0;    // with anything else
  LatencyFigures first_token, inter_token;
  double prompt_per_second = 0, cached_per_second = 0,
         completion_per_second = 0;                              // tokens of finished requests
  double decoded_per_second = 0;                                 // tokens, as they are computed
  std::map<std::string, double> in_flight;                       // at the router, by stage
  std::map<std::string, std::map<std::string, double>> workers;  // by role and state; none left out
  std::map<std::string, double> kv_pages;                        // of decode, by state
  std::optional<double> mean_batch;                              // sequences in a step
  double wire_bytes_per_second = 0;
  LatencyFigures exposed;  // of hand-offs: what no compute hides
  double failed_handoffs_per_second = 0;
  std::map<std::string, double> kept_ratio;  // mean, by algorithm
};

TopFigures FiguresOf(const MetricSeries& before, const MetricSeries& after, absl::Duration between);

std::string TopText(const TopFigures& figures);
nlohmann::ordered_json TopJson(const TopFigures& figures);

}  // namespace sluice
