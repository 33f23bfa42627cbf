#include "kernels/rendezvous.h"

#include <immintrin.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<bool> Rendezvous::Agree(bool yes) {
  const auto broken = [] { return absl::AbortedError("another rank of the model failed"); };
  uint32_t meeting = 0;
  {
    MutexLock lock(&mu_);
    if (broken_) return broken();
    meeting = over_;
    all_yes_ &= yes;
    if (++here_ == ranks_) {
      here_ = 0;
      agreed_ = std::exchange(all_yes_, true);
      ++over_;
      changed_.NotifyAll();
      return agreed_;
    }
  }
  constexpr int kSpins = 2000;  // pauses: about 50 us. Ranks do the same work and seldom part for longer
  for (int i = 0; i < kSpins && over_ == meeting && !broken_; ++i) _mm_pause();
  MutexLock lock(&mu_);
  const absl::Time end = clock_.Now() + patience_;
  while (over_ == meeting) {
    if (broken_) return broken();
    const absl::Duration left = end - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      broken_ = true;
      changed_.NotifyAll();
      return absl::DeadlineExceededError(absl::StrCat("another rank of the model did not come for ",
                                                      absl::ToInt64Milliseconds(patience_), " ms"));
    }
    changed_.WaitFor(&mu_, left);
  }
  return agreed_;
}

absl::Status Rendezvous::Launch(const std::function<absl::Status()>& launch) {
  SLUICE_RETURN_IF_ERROR(Agree(true).status());
  absl::Status launched = launch();
  if (!launched.ok()) {
    Break();
    return launched;
  }
  return Agree(true).status();
}

void Rendezvous::Break() {
  MutexLock lock(&mu_);
  broken_ = true;
  changed_.NotifyAll();
}

void Rendezvous::Mend() {
  MutexLock lock(&mu_);
  broken_ = false;
  here_ = 0;
  all_yes_ = true;
}

}  // namespace sluice
