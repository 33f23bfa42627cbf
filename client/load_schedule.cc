#include "client/load_schedule.h"

#include <cmath>

namespace sluice {

absl::Duration PoissonArrivals::Next() {
  // Not std::exponential_distribution: its numbers are not the same in every library.
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;  // [0, 1)
  seconds_ += -std::log1p(-uniform) / per_second_;
  return absl::Seconds(seconds_);
}

}  // namespace sluice
