#include "client/turn_stats.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

// The first token comes from prefill: decode made the others.
double SecondsPerToken(const v1::Done& done) {
  return done.timings().decode_seconds() / std::max(1, done.usage().completion_tokens() - 1);
}

std::string Megabytes(double bytes) { return absl::StrFormat("%.1f MB", bytes / 1e6); }

}  // namespace

std::string StatsLine(const v1::Done& done) {
  const v1::CompressionReport& report = done.compression();
  std::string line = absl::StrFormat("%d tokens in (%d known), %d out; kept %.0f a head",
                                     done.usage().prompt_tokens(), done.usage().cached_tokens(),
                                     done.usage().completion_tokens(), report.kept_tokens_mean());
  if (report.read_tokens() > 0) absl::StrAppend(&line, ", ", report.read_tokens(), " read a step");
  absl::StrAppend(&line, "; ", Megabytes(report.wire_bytes()), " KV sent of ",
                  Megabytes(report.kv_bytes_full()));
  if (report.wire_bytes() > 0) {
    absl::StrAppend(&line, absl::StrFormat(" (%.1fx less)", static_cast<double>(report.kv_bytes_full()) /
                                                                report.wire_bytes()));
  }
  absl::StrAppend(&line, absl::StrFormat("; first token %.2f s, then %.1f ms each; %s",
                                         done.timings().first_token_seconds(), SecondsPerToken(done) * 1e3,
                                         report.method()));
  if (!report.off_reason().empty()) absl::StrAppend(&line, " (off: ", report.off_reason(), ")");
  return line;
}

std::string StatsJson(const Generation& generation, const std::string& session_id) {
  const v1::Done& done = generation.done;
  const v1::CompressionReport& report = done.compression();
  nlohmann::ordered_json json;
  json["answer"] = generation.answer;
  json["prompt_tokens"] = done.usage().prompt_tokens();
  json["cached_tokens"] = done.usage().cached_tokens();
  json["kept_tokens_mean"] = report.kept_tokens_mean();
  json["read_tokens"] = report.read_tokens();
  json["kv_bytes_full"] = report.kv_bytes_full();
  json["kv_bytes_kept"] = report.kv_bytes_kept();
  json["wire_bytes"] = report.wire_bytes();
  json["ttft_seconds"] = done.timings().first_token_seconds();
  json["tpot_seconds"] = SecondsPerToken(done);
  json["method"] = report.method();
  json["off_reason"] = report.off_reason();
  json["finish_reason"] =
      done.choices_size() > 0 ? v1::FinishReason_Name(done.choices(0).finish_reason()) : "";
  for (size_t i = 0; i < generation.others.size(); ++i) {
    const int choice = static_cast<int>(i) + 1;
    nlohmann::ordered_json other;
    other["answer"] = generation.others[i];
    other["finish_reason"] =
        done.choices_size() > choice ? v1::FinishReason_Name(done.choices(choice).finish_reason()) : "";
    json["others"].push_back(std::move(other));
  }
  if (!session_id.empty()) json["session_id"] = session_id;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace sluice
