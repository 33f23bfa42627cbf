#include "client/load_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/input_text.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = 1 << 24;
constexpr int64_t kMostMs = int64_t{1000} * 86400 * 365;
constexpr uint64_t kTraceText = 2;  // apart from made-up prompts of the same seed
// Made-up words are not exactly as many tokens as wanted.
constexpr double kContextUsed = 0.97;

absl::StatusOr<int64_t> NumberOf(const json& object, const char* key, int64_t least, int64_t most) {
  const json& value = object.contains(key) ? object[key] : json();
  const bool whole = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(most)
                                                : value.is_number_integer();
  if (!whole || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": want a number from ", least, " to ", most));
  }
  return value.get<int64_t>();
}

absl::StatusOr<TraceRequest> RequestOf(const std::string& line) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return absl::InvalidArgumentError("want a JSON object");
  TraceRequest request;
  SLUICE_ASSIGN_OR_RETURN(const int64_t ms, NumberOf(object, "timestamp", 0, kMostMs));
  request.arrival = absl::Milliseconds(ms);
  SLUICE_ASSIGN_OR_RETURN(const int64_t input, NumberOf(object, "input_length", 1, kMostTokens));
  request.input_tokens = static_cast<int>(input);
  SLUICE_ASSIGN_OR_RETURN(const int64_t output, NumberOf(object, "output_length", 1, kMostTokens));
  request.output_tokens = static_cast<int>(output);
  const json ids = object.value("hash_ids", json());
  const int64_t blocks = (input + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (!ids.is_array() || static_cast<int64_t>(ids.size()) != blocks) {
    return absl::InvalidArgumentError(absl::StrCat("hash_ids: want ", blocks, " numbers, one for every ",
                                                   kTraceBlockTokens, " tokens of input_length"));
  }
  for (const json& id : ids) {
    if (!id.is_number_integer()) return absl::InvalidArgumentError("hash_ids: want numbers");
    request.blocks.push_back(id.get<int64_t>());
  }
  return request;
}

int Scaled(int tokens, double scale) { return std::max(1, static_cast<int>(std::lround(tokens * scale))); }

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--trace", path));
  std::vector<TraceRequest> trace;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<TraceRequest> request = RequestOf(std::string(line));
    if (request.ok() && !trace.empty() && request->arrival < trace.back().arrival) {
      request = absl::InvalidArgumentError("timestamp: earlier than that of the line before");
    }
    if (!request.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace ", path, ": line ", number, ": ", request.status().message()));
    }
    trace.push_back(*std::move(request));
  }
  if (trace.empty()) return absl::InvalidArgumentError(absl::StrCat("--trace ", path, ": no request in it"));
  return trace;
}

double ScaleThatFits(const std::vector<TraceRequest>& trace, int64_t context) {
  int64_t longest = 0;
  for (const TraceRequest& request : trace) {
    longest = std::max(longest, int64_t{request.input_tokens} + request.output_tokens);
  }
  if (context == 0 || longest == 0) return 1;
  return std::min(1.0, kContextUsed * static_cast<double>(context) / static_cast<double>(longest));
}

Dialogue TraceDialogue(const TraceRequest& request, double scale, const TokenFit& fit, uint64_t seed,
                       uint64_t run) {
  // A block has as many words in every prompt: then what two prompts share stands at the same places.
  const int per_block = std::max(1, static_cast<int>(std::lround(kTraceBlockTokens * scale / fit.per_word)));
  int left = fit.WordsFor(Scaled(request.input_tokens, scale));
  std::string text;
  for (size_t i = 0; i < request.blocks.size() && left > 0; ++i) {
    const int words = i + 1 == request.blocks.size() ? left : std::min(left, per_block);
    const uint64_t id = static_cast<uint64_t>(request.blocks[i]);
    std::seed_seq seeds{seed & 0xFFFFFFFF, seed >> 32, run, kTraceText, id & 0xFFFFFFFF, id >> 32};
    absl::StrAppend(&text, text.empty() ? "" : " ", RandomWords(words, &seeds));
    left -= words;
  }
  Dialogue dialogue;
  dialogue.turns.push_back(UserMessage(std::move(text)));
  dialogue.output_tokens = Scaled(request.output_tokens, scale);
  return dialogue;
}

}  // namespace sluice
