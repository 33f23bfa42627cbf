// Role: finds stop strings in text that comes in pieces.
// Why: text that may be the start of a stop string must wait, and nothing else may.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 256;

  // InvalidArgument: too many stops, or one that is empty or too long.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  struct Result {
    std::string text;         // may go to the reader now
    std::optional<int> stop;  // index of the stop string that was met; text ends where it begins
  };
  // The stop that ends first wins; of two that end together, the longer. So a stop is met as soon as its last
  // byte comes, however the text is cut. Whole code points in, whole code points out. After a stop everything
  // more is dropped.
  Result Push(absl::string_view text);
  // The end of the text: what was held back.
  std::string Flush();

 private:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  std::vector<std::string> stops_;
  std::string held_;  // the longest end of the text so far that begins a stop
  bool stopped_ = false;
};

}  // namespace sluice
