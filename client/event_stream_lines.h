// Role: the events of a text/event-stream as its bytes come, in whatever pieces. Threads: one.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

class EventStreamLines {
 public:
  // on_data: the data of an event, its lines joined by line feeds. Events without data, comments and other
  // fields are nothing.
  explicit EventStreamLines(std::function<void(absl::string_view data)> on_data)
      : on_data_(std::move(on_data)) {}

  void Feed(absl::string_view bytes);

 private:
  void TakeLine(absl::string_view line);

  const std::function<void(absl::string_view)> on_data_;
  std::string line_, data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a line feed that follows belongs to the same end of line
};

}  // namespace sluice
