// Role: joins CPU backends that are ranks of one model: their threads meet in shared memory, and each sums
// its share of the rows for all. Why a fixed order: every rank must hold the same bits. Threads: any; one of
// each rank at a time in Sum.
#pragma once

#include <vector>

#include "common/base/mutex.h"
#include "kernels/rank_link.h"

namespace sluice {

class CpuLink final : public RankLink {
 public:
  explicit CpuLink(int ranks) : parts_(ranks) {}

  // Returns when x [n] of every rank holds the sum over all ranks, in the order of ranks. False: the link
  // broke before all had come. add(from, n, to): to += from.
  bool Sum(int rank, float* x, int64_t n, void (*add)(const float* from, int n, float* to));

  void Break() override;
  absl::Status Mend() override;

 private:
  struct Part {
    float* x = nullptr;
    int64_t n = 0;
  };
  // Until every rank is here. False: broken, unless the ranks are on their way out.
  bool Meet(bool breakable);

  std::vector<Part> parts_;  // by rank; written before a meeting, read after it
  Mutex mu_;
  CondVar all_here_;
  int here_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t meetings_ ABSL_GUARDED_BY(mu_) = 0;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
