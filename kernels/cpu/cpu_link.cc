#include "kernels/cpu/cpu_link.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"

namespace sluice {

bool CpuLink::Sum(int rank, float* x, int64_t n, void (*add)(const float* from, int n, float* to)) {
  const int ranks = static_cast<int>(parts_.size());
  parts_[rank] = {x, n};
  if (!Meet(/*breakable=*/true)) return false;
  for (const Part& part : parts_) SLUICE_CHECK(part.n == n);
  constexpr int64_t kPiece = 4096;  // stays in the cache from the first addition to the last copy
  const int64_t begin = n * rank / ranks, end = n * (rank + 1) / ranks;
  for (int64_t i = begin; i < end; i += kPiece) {
    const int piece = static_cast<int>(std::min(kPiece, end - i));
    float* sum = parts_[0].x + i;
    for (int r = 1; r < ranks; ++r) add(parts_[r].x + i, piece, sum);
    for (int r = 1; r < ranks; ++r) std::memcpy(parts_[r].x + i, sum, piece * sizeof(float));
  }
  // All came, so all get here; nobody may go on while another still writes its rows.
  return Meet(/*breakable=*/false);
}

bool CpuLink::Meet(bool breakable) {
  MutexLock lock(&mu_);
  if (breakable && broken_) return false;
  const int64_t meeting = meetings_;
  if (++here_ == static_cast<int>(parts_.size())) {
    here_ = 0;
    ++meetings_;
    all_here_.NotifyAll();
    return true;
  }
  while (meetings_ == meeting) {
    if (breakable && broken_) return false;
    all_here_.WaitFor(&mu_, absl::Seconds(1));
  }
  return true;
}

void CpuLink::Break() {
  MutexLock lock(&mu_);
  broken_ = true;
  all_here_.NotifyAll();
}

absl::Status CpuLink::Mend() {
  MutexLock lock(&mu_);
  broken_ = false;
  here_ = 0;
  return absl::OkStatus();
}

}  // namespace sluice
