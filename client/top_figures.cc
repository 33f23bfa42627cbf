#include "client/top_figures.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

std::string Seconds(const std::optional<double>& seconds) {
  if (!seconds.has_value()) return "-";
  if (*seconds < 1) return absl::StrFormat("%.3g ms", *seconds * 1e3);
  return absl::StrFormat("%.3g s", *seconds);
}

std::string Latency(const LatencyFigures& figures) {
  return absl::StrFormat("p50 %-9s p95 %-9s p99 %s", Seconds(figures.p50), Seconds(figures.p95),
                         Seconds(figures.p99));
}

// "decode 3, prefill 1": those that are not zero; "-": none is.
std::string Counts(const std::map<std::string, double>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts)
    if (count != 0) parts.push_back(absl::StrFormat("%s %.0f", name, count));
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

std::string BytesPerSecond(double rate) {
  if (rate >= 1e9) return absl::StrFormat("%.2f GB/s", rate / 1e9);
  return absl::StrFormat("%.2f MB/s", rate / 1e6);
}

ordered_json OrNull(const std::optional<double>& value) {
  return value.has_value() ? ordered_json(*value) : ordered_json();
}

ordered_json LatencyJson(const LatencyFigures& figures) {
  return {{"p50", OrNull(figures.p50)}, {"p95", OrNull(figures.p95)}, {"p99", OrNull(figures.p99)}};
}

}  // namespace

TopFigures FiguresOf(const MetricSeries& before, const MetricSeries& after, absl::Duration between) {
  const MetricSeries grown = Increases(before, after);
  const double seconds = absl::ToDoubleSeconds(between);
  const auto rate = [&](const std::string& name, const MetricLabels& with = {}) {
    return SumOf(grown, name, with) / seconds;
  };
  const auto latency = [&](const std::string& histogram) {
    return LatencyFigures{QuantileOf(grown, histogram, .5), QuantileOf(grown, histogram, .95),
                          QuantileOf(grown, histogram, .99)};
  };
  TopFigures figures;
  const auto models = SumBy(after, "model", "sluice_build_info");
  std::vector<std::string> names;
  for (const auto& [model, count] : models) names.push_back(model);
  figures.model = absl::StrJoin(names, ", ");
  figures.requests_per_second = rate("sluice_requests_total", {{"code", "OK"}});
  figures.failed_per_second = rate("sluice_requests_total") - figures.requests_per_second;
  figures.first_token = latency("sluice_time_to_first_token_seconds");
  figures.inter_token = latency("sluice_inter_token_seconds");
  figures.prompt_per_second = rate("sluice_tokens_total", {{"kind", "prompt"}});
  figures.cached_per_second = rate("sluice_tokens_total", {{"kind", "cached"}});
  figures.completion_per_second = rate("sluice_tokens_total", {{"kind", "completion"}});
  figures.decoded_per_second = rate("sluice_batch_size_sum", {{"role", "decode"}});
  figures.in_flight = SumBy(after, "stage", "sluice_requests_in_flight", {{"role", "router"}});
  for (const char* role : {"prefill", "decode"}) {
    for (const auto& [state, count] : SumBy(after, "state", "sluice_worker_state", {{"role", role}}))
      if (count > 0) figures.workers[role][state] = count;
  }
  figures.kv_pages = SumBy(after, "state", "sluice_kv_blocks", {{"role", "decode"}});
  figures.mean_batch = MeanOf(grown, "sluice_batch_size", {{"role", "decode"}});
  figures.wire_bytes_per_second = rate("sluice_kv_transfer_bytes_total", {{"form", "wire"}});
  figures.exposed = latency("sluice_kv_transfer_exposed_seconds");
  figures.failed_handoffs_per_second = rate("sluice_kv_transfer_failures_total", {{"role", "prefill"}});
  for (const auto& [algorithm, count] : SumBy(grown, "algorithm", "sluice_compression_kept_ratio_count")) {
    if (const auto mean = MeanOf(grown, "sluice_compression_kept_ratio", {{"algorithm", algorithm}}))
      figures.kept_ratio[algorithm] = *mean;
  }
  return figures;
}

std::string TopText(const TopFigures& figures) {
  std::string text;
  const auto line = [&text](absl::string_view name, absl::string_view what) {
    absl::StrAppendFormat(&text, "%-14s %s\n", name, what);
  };
  line("model", figures.model);
  line("requests",
       absl::StrFormat("%.2f/s ok, %.2f/s failed", figures.requests_per_second, figures.failed_per_second));
  line("in flight", Counts(figures.in_flight));
  line("first token", Latency(figures.first_token));
  line("between tokens", Latency(figures.inter_token));
  line("tokens",
       absl::StrFormat("in %.0f/s (cached %.0f/s), out %.0f/s; decoding %.0f/s", figures.prompt_per_second,
                       figures.cached_per_second, figures.completion_per_second, figures.decoded_per_second));
  for (const char* role : {"prefill", "decode"}) {
    const auto found = figures.workers.find(role);
    line(absl::StrCat(role, " workers"), found == figures.workers.end() ? "-" : Counts(found->second));
  }
  line("KV pages", Counts(figures.kv_pages));
  line("batch",
       figures.mean_batch.has_value() ? absl::StrFormat("%.1f sequences a step", *figures.mean_batch) : "-");
  line("transfer", absl::StrFormat("%s, %.2f/s failed", BytesPerSecond(figures.wire_bytes_per_second),
                                   figures.failed_handoffs_per_second));
  line("  not hidden", Latency(figures.exposed));
  std::vector<std::string> kept;
  for (const auto& [algorithm, ratio] : figures.kept_ratio)
    kept.push_back(absl::StrFormat("%s %.1f %%", algorithm, ratio * 100));
  line("kept rows", kept.empty() ? "-" : absl::StrJoin(kept, ", "));
  return text;
}

ordered_json TopJson(const TopFigures& figures) {
  return {{"model", figures.model},
          {"requests_per_second", figures.requests_per_second},
          {"failed_per_second", figures.failed_per_second},
          {"first_token_seconds", LatencyJson(figures.first_token)},
          {"inter_token_seconds", LatencyJson(figures.inter_token)},
          {"prompt_tokens_per_second", figures.prompt_per_second},
          {"cached_tokens_per_second", figures.cached_per_second},
          {"completion_tokens_per_second", figures.completion_per_second},
          {"decoded_tokens_per_second", figures.decoded_per_second},
          {"in_flight", figures.in_flight},
          {"workers", figures.workers},
          {"kv_pages", figures.kv_pages},
          {"mean_batch", OrNull(figures.mean_batch)},
          {"wire_bytes_per_second", figures.wire_bytes_per_second},
          {"exposed_seconds", LatencyJson(figures.exposed)},
          {"failed_handoffs_per_second", figures.failed_handoffs_per_second},
          {"kept_ratio", figures.kept_ratio}};
}

}  // namespace sluice
