// Role: the findings of `sluice doctor`, one line each. Threads: one.
#pragma once

#include <ostream>

#include "absl/strings/string_view.h"
#include "client/console.h"

namespace sluice {

enum Level { kOk, kWarn, kFail };

class Report {
 public:
  explicit Report(const Console& console) : console_(console) {}
  // fix: what to do; empty where all is well.
  void Line(Level level, absl::string_view what, absl::string_view finding, absl::string_view fix = "") {
    constexpr const char* kNames[] = {"ok  ", "warn", "fail"};
    *console_.out << kNames[level] << "  " << what << ": " << TextFor(console_, finding);
    if (!fix.empty()) *console_.out << "; " << fix;
    *console_.out << std::endl;
    failed_ |= level == kFail;
  }
  bool failed() const { return failed_; }

 private:
  const Console& console_;
  bool failed_ = false;
};

}  // namespace sluice
