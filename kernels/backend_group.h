// Role: the backends of one model's ranks (tensor parallelism), and the threads that run the same call on all
// of them: what one rank's queue sums with the others' (Ops::AllReduce) must be queued on all ranks at once.
// A group of one rank is its backend and no thread. Ops of every rank may read and write every rank's
// memory. Threads: Run by one loop; the backends as ever.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "kernels/backend.h"
#include "kernels/rank_link.h"

namespace sluice {

class BackendGroup {
 public:
  explicit BackendGroup(std::unique_ptr<Backend> only);
  BackendGroup(std::vector<std::unique_ptr<Backend>> ranks, std::shared_ptr<RankLink> link);
  ~BackendGroup();

  int size() const { return static_cast<int>(ranks_.size()); }
  Backend* rank(int rank) const { return ranks_[rank].get(); }

  std::string description() const;  // "cpu, avx2, 2 threads"; of each rank

  // The longest of its ranks' waits (Backend::waiting).
  absl::Duration waiting() const;

  // Runs that failed so far: what they or earlier runs left queued may have been cut off.
  int64_t errors() const { return errors_; }

  // call(rank) for all ranks at once, rank 0's on this thread; returns when all have. The error that came
  // first ends the sums of all other ranks and is returned; the next Run finds the link whole again, or says
  // why not.
  absl::Status Run(const std::function<absl::Status(int rank)>& call);

 private:
  void RankLoop(int rank);
  void RunRank(int rank);

  std::vector<std::unique_ptr<Backend>> ranks_;
  const std::shared_ptr<RankLink> link_;                    // null: one rank
  const std::function<absl::Status(int)>* call_ = nullptr;  // stable while a run is under way
  std::atomic<uint32_t> run_{0};                            // counts runs; rank threads wait for the next
  std::atomic<int> busy_{0};                                // rank threads still in the call
  std::atomic<bool> stop_{false};
  Mutex mu_;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  bool broken_ = false;
  int64_t errors_ = 0;
  std::vector<NamedThread> threads_;
};

}  // namespace sluice
