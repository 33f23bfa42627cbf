#include "client/event_stream_lines.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sluice {

void EventStreamLines::Feed(absl::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n' && std::exchange(after_return_, false)) continue;
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      TakeLine(std::exchange(line_, ""));
    } else {
      line_ += c;
    }
  }
}

void EventStreamLines::TakeLine(absl::string_view line) {
  if (line.empty()) {
    if (std::exchange(has_data_, false)) on_data_(std::exchange(data_, ""));
    return;
  }
  if (line != "data" && !absl::ConsumePrefix(&line, "data:")) return;
  if (line == "data") line = "";
  absl::ConsumePrefix(&line, " ");
  absl::StrAppend(&data_, has_data_ ? "\n" : "", line);
  has_data_ = true;
}

}  // namespace sluice
