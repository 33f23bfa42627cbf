#include "client/load_report.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

struct Latency {
  const char* key;
  const char* name;
  Statistics LoadSummary::*statistics;
};
constexpr Latency kLatencies[] = {{"ttft_ms", "TTFT (ms)", &LoadSummary::ttft_ms},
                                  {"tpot_ms", "TPOT (ms)", &LoadSummary::tpot_ms},
                                  {"itl_ms", "ITL (ms)", &LoadSummary::itl_ms},
                                  {"e2el_ms", "E2EL (ms)", &LoadSummary::e2el_ms}};

constexpr double kMegabyte = 1e6;

class Table {
 public:
  explicit Table(const std::vector<LoadColumn>& columns) : columns_(columns) {
    lines_.resize(1);
    for (const LoadColumn& column : columns) lines_[0].push_back(column.name);
    lines_[0].insert(lines_[0].begin(), "");
  }

  // value: as text with `digits` behind the point.
  void Row(const std::string& name, int digits, const std::function<double(const LoadColumn&)>& value) {
    std::vector<std::string> line = {name};
    for (const LoadColumn& column : columns_) line.push_back(absl::StrFormat("%.*f", digits, value(column)));
    lines_.push_back(std::move(line));
  }
  void Gap() { lines_.emplace_back(); }

  std::string Text() const {
    std::vector<size_t> widths(columns_.size() + 1);
    for (const auto& line : lines_) {
      for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    }
    std::string text;
    for (const auto& line : lines_) {
      for (size_t i = 0; i < line.size(); ++i) {
        const std::string space(widths[i] - line[i].size(), ' ');
        absl::StrAppend(&text, i == 0 ? line[i] : absl::StrCat("  ", space), i == 0 ? space : line[i]);
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

 private:
  const std::vector<LoadColumn>& columns_;
  std::vector<std::vector<std::string>> lines_;
};

template <class F>
bool Any(const std::vector<LoadColumn>& columns, F has) {
  return std::any_of(columns.begin(), columns.end(),
                     [&](const LoadColumn& column) { return has(column.summary); });
}

// Mean per completed request.
double PerRequest(int64_t total, const LoadSummary& summary) {
  return summary.completed > 0 ? static_cast<double>(total) / summary.completed : 0;
}

std::string Notes(const std::vector<LoadColumn>& columns) {
  std::string text;
  for (const LoadColumn& column : columns) {
    for (const auto& [method, count] : column.summary.methods) {
      if (method != column.name)
        absl::StrAppend(&text, column.name, ": ", count, " served by ", method, "\n");
    }
    for (const auto& [code, error] : column.summary.errors) {
      absl::StrAppend(&text, column.name, ": ", error.count, " failed with ", code,
                      ", first: ", error.first_message, "\n");
    }
  }
  return text.empty() ? text : absl::StrCat("\n", text);
}

ordered_json Milliseconds(const std::optional<absl::Duration>& duration) {
  if (!duration.has_value()) return nullptr;
  return absl::ToDoubleMilliseconds(*duration);
}

ordered_json RequestJson(const RequestRecord& record, const Slo& slo) {
  const v1::Done& done = record.done;
  const v1::CompressionReport& report = done.compression();
  ordered_json gaps = ordered_json::array();
  for (absl::Duration gap : record.itl) gaps.push_back(absl::ToDoubleMilliseconds(gap));
  return {{"dialogue", record.dialogue},
          {"turn", record.turn},
          {"code", absl::StatusCodeToString(record.status.code())},
          {"error", std::string(record.status.message())},
          {"arrival_s", absl::ToDoubleSeconds(record.arrival)},
          {"sent_s", absl::ToDoubleSeconds(record.sent)},
          {"end_s", absl::ToDoubleSeconds(record.end)},
          {"ttft_ms", Milliseconds(record.ttft())},
          {"tpot_ms", Milliseconds(record.tpot())},
          {"e2el_ms", Milliseconds(record.e2el())},
          {"itls_ms", std::move(gaps)},
          {"good", Meets(slo, record)},
          {"input_tokens", done.usage().prompt_tokens()},
          {"cached_tokens", done.usage().cached_tokens()},
          {"output_tokens", done.usage().completion_tokens()},
          {"method", report.method()},
          {"off_reason", report.off_reason()},
          {"kept_tokens_mean", report.kept_tokens_mean()},
          {"read_tokens", report.read_tokens()},
          {"kv_bytes_full", report.kv_bytes_full()},
          {"kv_bytes_kept", report.kv_bytes_kept()},
          {"wire_bytes", report.wire_bytes()},
          {"server_queue_s", done.timings().queue_seconds()},
          {"server_prefill_s", done.timings().prefill_seconds()},
          {"server_transfer_s", done.timings().transfer_seconds()},
          {"server_ttft_s", done.timings().first_token_seconds()},
          {"server_decode_s", done.timings().decode_seconds()},
          {"attempts", done.attempts()}};
}

void AddStatistics(const Statistics& statistics, const std::string& key, ordered_json* json) {
  (*json)["mean_" + key] = statistics.mean;
  (*json)["median_" + key] = statistics.percentiles[0];
  (*json)["std_" + key] = statistics.std;
  (*json)["min_" + key] = statistics.min;
  (*json)["max_" + key] = statistics.max;
  for (size_t i = 0; i < std::size(kPercentiles); ++i) {
    (*json)[absl::StrCat("p", kPercentiles[i], "_", key)] = statistics.percentiles[i];
  }
}

}  // namespace

std::string LoadTable(const std::vector<LoadColumn>& columns, const Slo& slo, bool open_loop) {
  Table table(columns);
  table.Row("Successful requests", 0, [](auto& c) { return c.summary.completed; });
  if (Any(columns, [](auto& s) { return s.failed > 0; })) {
    table.Row("Failed requests", 0, [](auto& c) { return c.summary.failed; });
  }
  if (Any(columns, [](auto& s) { return s.interrupted > 0; })) {
    table.Row("Interrupted requests", 0, [](auto& c) { return c.summary.interrupted; });
  }
  table.Row("Benchmark duration (s)", 2, [](auto& c) { return c.summary.duration; });
  table.Row("Peak concurrent requests", 0, [](auto& c) { return c.result.max_in_flight; });
  if (open_loop)
    table.Row("P99 send delay (ms)", 2, [](auto& c) { return c.summary.send_delay_ms.percentiles[3]; });
  table.Row("Request throughput (req/s)", 2, [](auto& c) { return c.summary.request_throughput; });
  if (slo.any()) {
    table.Row("Request goodput (req/s)", 2, [](auto& c) { return c.summary.request_goodput; });
    table.Row("Within the SLO (%)", 1, [](auto& c) {
      return c.summary.good * 100.0 / std::max(1, c.summary.completed + c.summary.failed);
    });
  }
  table.Row("Output token throughput (tok/s)", 1, [](auto& c) { return c.summary.output_throughput; });
  table.Row("Total token throughput (tok/s)", 1, [](auto& c) { return c.summary.total_token_throughput; });
  table.Gap();
  table.Row("Input tokens a request", 1,
            [](auto& c) { return PerRequest(c.summary.total_input_tokens, c.summary); });
  table.Row("  of them cached", 1,
            [](auto& c) { return PerRequest(c.summary.total_cached_tokens, c.summary); });
  table.Row("Output tokens a request", 1,
            [](auto& c) { return PerRequest(c.summary.total_output_tokens, c.summary); });
  table.Row("Kept tokens a KV head", 1, [](auto& c) { return c.summary.mean_kept_tokens; });
  table.Row("Read tokens a step (0: all)", 1, [](auto& c) { return c.summary.mean_read_tokens; });
  table.Row("KV of the prompt (MB)", 2, [](auto& c) { return c.summary.mean_kv_bytes_full / kMegabyte; });
  table.Row("KV kept (MB)", 2, [](auto& c) { return c.summary.mean_kv_bytes_kept / kMegabyte; });
  table.Row("KV on the wire (MB)", 2, [](auto& c) { return c.summary.mean_wire_bytes / kMegabyte; });
  for (const Latency& latency : kLatencies) {
    const auto statistics = [&latency](const LoadColumn& column) {
      return column.summary.*latency.statistics;
    };
    table.Gap();
    table.Row(absl::StrCat("Mean ", latency.name), 2, [&](auto& c) { return statistics(c).mean; });
    for (size_t i = 0; i < std::size(kPercentiles); ++i) {
      table.Row(absl::StrCat("P", kPercentiles[i], " ", latency.name), 2,
                [&](auto& c) { return statistics(c).percentiles[i]; });
    }
  }
  return absl::StrCat(table.Text(), Notes(columns));
}

ordered_json LoadJson(const LoadColumn& column, const Slo& slo) {
  const LoadSummary& summary = column.summary;
  ordered_json json = {
      {"preset", column.name},
      {"interrupted", column.result.interrupted},
      {"completed", summary.completed},
      {"failed", summary.failed},
      {"interrupted_requests", summary.interrupted},
      {"duration", summary.duration},
      {"max_concurrent_requests", column.result.max_in_flight},
      {"total_input_tokens", summary.total_input_tokens},
      {"total_cached_tokens", summary.total_cached_tokens},
      {"total_output_tokens", summary.total_output_tokens},
      {"request_throughput", summary.request_throughput},
      {"output_throughput", summary.output_throughput},
      {"total_token_throughput", summary.total_token_throughput},
      {"good", slo.any() ? ordered_json(summary.good) : ordered_json()},
      {"request_goodput", slo.any() ? ordered_json(summary.request_goodput) : ordered_json()}};
  for (const Latency& latency : kLatencies) AddStatistics(summary.*latency.statistics, latency.key, &json);
  AddStatistics(summary.send_delay_ms, "send_delay_ms", &json);
  json["mean_kept_tokens"] = summary.mean_kept_tokens;
  json["mean_read_tokens"] = summary.mean_read_tokens;
  json["mean_kv_bytes_full"] = summary.mean_kv_bytes_full;
  json["mean_kv_bytes_kept"] = summary.mean_kv_bytes_kept;
  json["mean_wire_bytes"] = summary.mean_wire_bytes;
  json["methods"] = summary.methods;
  json["errors"] = ordered_json::object();
  for (const auto& [code, error] : summary.errors) {
    json["errors"][code] = {{"count", error.count}, {"first_message", error.first_message}};
  }
  json["requests"] = ordered_json::array();
  for (const RequestRecord& record : column.result.records)
    json["requests"].push_back(RequestJson(record, slo));
  return json;
}

}  // namespace sluice
