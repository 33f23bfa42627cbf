#include "common/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
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
  size_t old = held_.size();
  held_.append(text.data(), text.size());
  absl::string_view all = held_;
  for (size_t end = old + 1; end <= all.size(); ++end) {
    std::optional<int> met;
    for (size_t i = 0; i < stops_.size(); ++i)
      if (absl::EndsWith(all.substr(0, end), stops_[i]) && (!met || stops_[i].size() > stops_[*met].size()))
        met = static_cast<int>(i);
    if (!met) continue;
    stopped_ = true;
    Result result{held_.substr(0, end - stops_[*met].size()), met};
    held_.clear();
    return result;
  }
  // The longest end of the text that begins a stop must wait.
  size_t wait = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, all.size()); n > wait; --n)
      if (absl::EndsWith(all, absl::string_view(stop).substr(0, n))) wait = n;
  Result result{held_.substr(0, held_.size() - wait), std::nullopt};
  held_.erase(0, held_.size() - wait);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace sluice
