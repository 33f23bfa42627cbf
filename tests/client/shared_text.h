// Role: an ostream that a command writes in one thread and a test reads in another. Threads: any.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>

#include "absl/time/clock.h"
#include "common/base/mutex.h"

namespace sluice {

class SharedText : private std::streambuf {
 public:
  std::ostream* stream() { return &stream_; }
  std::string text() const {
    MutexLock lock(&mu_);
    return text_;
  }
  // False if `part` does not come within 30 s.
  bool WaitFor(const std::string& part) const {
    for (int i = 0; i < 3000; ++i) {
      if (text().find(part) != std::string::npos) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

 private:
  int overflow(int c) override {
    MutexLock lock(&mu_);
    if (c != traits_type::eof()) text_.push_back(static_cast<char>(c));
    return 0;
  }
  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    MutexLock lock(&mu_);
    text_.append(bytes, count);
    return count;
  }

  mutable Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  std::ostream stream_{this};
};

}  // namespace sluice
