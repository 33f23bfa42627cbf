// Role: who waits for a GPU, and since when. Why: a wait cannot be cut short, but a process may be ended that
// has waited too long. Threads: any.
#pragma once

#include <set>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice {

class DeviceWaits {
 public:
  class Wait {
   public:
    explicit Wait(DeviceWaits* waits) : waits_(waits) {
      MutexLock lock(&waits_->mu_);
      since_ = waits_->since_.insert(waits_->clock_.Now());
    }
    ~Wait() {
      MutexLock lock(&waits_->mu_);
      waits_->since_.erase(since_);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    DeviceWaits* const waits_;
    std::multiset<absl::Time>::iterator since_;
  };

  absl::Duration Longest() const {
    MutexLock lock(&mu_);
    return since_.empty() ? absl::ZeroDuration() : clock_.Now() - *since_.begin();
  }

 private:
  const SteadyClock clock_{};
  mutable Mutex mu_;
  std::multiset<absl::Time> since_ ABSL_GUARDED_BY(mu_);  // begins of those under way
};

}  // namespace sluice
