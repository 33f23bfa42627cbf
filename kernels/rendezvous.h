// Role: where the threads of one model's ranks meet around what they launch together. A sum spins on its GPU
// until the other GPUs have theirs; and whatever waits for a GPU inside the driver (the first launch of a
// kernel loads its code, memory is mapped for the other GPUs) keeps other threads out of the driver
// meanwhile. So nobody launches a sum before all have launched what comes before it, and nobody goes on
// before all have launched it. Why apart from the link: it knows no device, and is tested without one.
// Threads: one of each rank in Agree and Launch, all ranks the same calls in the same order; Break any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice {

class Rendezvous {
 public:
  // patience: who has waited for the others this long gives up for all.
  Rendezvous(int ranks, absl::Duration patience) : ranks_(ranks), patience_(patience) {}

  // Returns when all ranks are here: whether all said yes. Aborted: broken. DeadlineExceeded: somebody did
  // not come.
  absl::StatusOr<bool> Agree(bool yes);

  // launch() of every rank: it is called when all are here, and the call returns when all have launched. What
  // launch() fails with ends the call for all.
  absl::Status Launch(const std::function<absl::Status()>& launch);

  // Ends all calls under way, and all later ones.
  void Break();
  // After Break, when no call is under way.
  void Mend();

 private:
  const int ranks_;
  const absl::Duration patience_;
  const SteadyClock clock_{};
  // Read without the lock while spinning.
  std::atomic<uint32_t> over_{0};  // meetings so far
  std::atomic<bool> broken_{false};
  Mutex mu_;
  CondVar changed_;
  int here_ ABSL_GUARDED_BY(mu_) = 0;  // of the next meeting
  bool all_yes_ ABSL_GUARDED_BY(mu_) = true;
  bool agreed_ ABSL_GUARDED_BY(mu_) =
      false;  // of the last one; nobody can end the next before all have read it
};

}  // namespace sluice
