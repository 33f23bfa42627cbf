#include "client/load_summary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

double Per(double amount, double of) { return of > 0 ? amount / of : 0; }

bool Within(const std::optional<double>& bound_ms, const std::optional<absl::Duration>& value) {
  return !bound_ms.has_value() || !value.has_value() || Ms(*value) <= *bound_ms;
}

}  // namespace

double Percentile(const std::vector<double>& ascending, double percent) {
  const double rank = percent / 100 * static_cast<double>(ascending.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, ascending.size() - 1);
  return ascending[below] + (rank - static_cast<double>(below)) * (ascending[above] - ascending[below]);
}

Statistics StatisticsOf(std::vector<double> values) {
  Statistics out;
  out.count = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.min = values.front();
  out.max = values.back();
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - out.mean) * (value - out.mean);
  out.std = std::sqrt(squares / static_cast<double>(values.size()));
  for (size_t i = 0; i < std::size(kPercentiles); ++i)
    out.percentiles[i] = Percentile(values, kPercentiles[i]);
  return out;
}

bool Meets(const Slo& slo, const RequestRecord& record) {
  return record.completed() && Within(slo.ttft_ms, record.ttft()) && Within(slo.tpot_ms, record.tpot()) &&
         Within(slo.e2el_ms, record.e2el());
}

LoadSummary Summarize(const std::vector<RequestRecord>& records, absl::Duration duration, const Slo& slo) {
  LoadSummary out;
  out.duration = absl::ToDoubleSeconds(duration);
  std::vector<double> ttft, tpot, itl, e2el, send_delay;
  for (const RequestRecord& record : records) {
    send_delay.push_back(Ms(record.sent - record.arrival));
    if (record.interrupted) {
      ++out.interrupted;
      continue;
    }
    if (!record.completed()) {
      ++out.failed;
      ErrorCount& error = out.errors[absl::StatusCodeToString(record.status.code())];
      if (error.count++ == 0) error.first_message = std::string(record.status.message());
      continue;
    }
    ++out.completed;
    out.good += Meets(slo, record);
    if (record.ttft().has_value()) ttft.push_back(Ms(*record.ttft()));
    if (record.tpot().has_value()) tpot.push_back(Ms(*record.tpot()));
    for (absl::Duration gap : record.itl) itl.push_back(Ms(gap));
    e2el.push_back(Ms(record.e2el()));
    const v1::Usage& usage = record.done.usage();
    out.total_input_tokens += usage.prompt_tokens();
    out.total_cached_tokens += usage.cached_tokens();
    out.total_output_tokens += usage.completion_tokens();
    const v1::CompressionReport& report = record.done.compression();
    out.mean_kept_tokens += report.kept_tokens_mean();
    out.mean_read_tokens += report.read_tokens();
    out.mean_kv_bytes_full += static_cast<double>(report.kv_bytes_full());
    out.mean_kv_bytes_kept += static_cast<double>(report.kv_bytes_kept());
    out.mean_wire_bytes += static_cast<double>(report.wire_bytes());
    ++out.methods[report.off_reason().empty()
                      ? report.method()
                      : absl::StrCat(report.method(), " (off: ", report.off_reason(), ")")];
  }
  for (double* sum : {&out.mean_kept_tokens, &out.mean_read_tokens, &out.mean_kv_bytes_full,
                      &out.mean_kv_bytes_kept, &out.mean_wire_bytes}) {
    *sum = Per(*sum, out.completed);
  }
  out.request_throughput = Per(out.completed, out.duration);
  out.output_throughput = Per(static_cast<double>(out.total_output_tokens), out.duration);
  out.total_token_throughput =
      Per(static_cast<double>(out.total_input_tokens + out.total_output_tokens), out.duration);
  out.request_goodput = Per(out.good, out.duration);
  out.ttft_ms = StatisticsOf(std::move(ttft));
  out.tpot_ms = StatisticsOf(std::move(tpot));
  out.itl_ms = StatisticsOf(std::move(itl));
  out.e2el_ms = StatisticsOf(std::move(e2el));
  out.send_delay_ms = StatisticsOf(std::move(send_delay));
  return out;
}

}  // namespace sluice
