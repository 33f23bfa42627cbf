// Role: time as an argument, so that every timeout is tested in milliseconds. Monotonic: never goes back.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace sluice {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(since));
  }
};

// For tests and simulations. Not thread-safe: the test that owns it advances it between steps.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace sluice
