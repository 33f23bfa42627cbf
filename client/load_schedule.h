// Role: when an open loop sends: at the times of a trace, or of a Poisson process, the same one for the same
// seed. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>

#include "absl/time/time.h"

namespace sluice {

// The next arrival since the start, ascending; nullopt: no more. A null function: a closed loop.
using Arrivals = std::function<std::optional<absl::Duration>()>;

class PoissonArrivals {
 public:
  // per_second > 0.
  PoissonArrivals(double per_second, uint64_t seed) : per_second_(per_second), random_(seed) {}

  // The next arrival since the start, ascending; the first comes after a gap of its own.
  absl::Duration Next();

 private:
  const double per_second_;
  std::mt19937_64 random_;
  double seconds_ = 0;
};

}  // namespace sluice
