#include "common/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops)
    return absl::InvalidArgumentError(absl::StrCat("stop: ", stops.size(), " strings, at most ", kMaxStops));
  for (const std::string& stop : stops) {
    if (stop.empty()) return absl::InvalidArgumentError("stop: a string is empty");
    if (stop.size() > kMaxStopBytes)
      return absl::InvalidArgumentError(
          absl::StrCat("stop: a string of ", stop.size(), " bytes, at most ", kMaxStopBytes));
  }
  return StopMatcher(std::move(stops));
}

StopMatcher::Result StopMatcher::Push(absl::string_view text) {
  if (stopped_) return {};
  held_.append(text.data(), text.size());
  // From each position: a whole stop ends the text; the start of one, up to the end of held_, must wait,
  // because it would begin before any stop found later.
  for (size_t at = 0; at < held_.size(); ++at) {
    absl::string_view rest = absl::string_view(held_).substr(at);
    std::optional<int> met;
    bool may_come = false;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      size_t n = std::min(stop.size(), rest.size());
      if (rest.compare(0, n, stop, 0, n) != 0) continue;
      if (n < stop.size()) {
        may_come = true;
      } else if (!met || stop.size() < stops_[*met].size()) {
        met = static_cast<int>(i);
      }
    }
    if (!met && !may_come) continue;
    Result result{held_.substr(0, at), met};
    if (met) {
      stopped_ = true;
      held_.clear();
    } else {
      held_.erase(0, at);
    }
    return result;
  }
  return {std::exchange(held_, ""), std::nullopt};
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace sluice
