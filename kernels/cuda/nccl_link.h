// Role: joins the GPUs of one model's ranks: one NCCL communicator a rank, all in this process. Without
// NCCL's header nccl_link_absent.cc is built in its place. Threads: any; calls of a rank from one at a time,
// all ranks the same calls in the same order (rendezvous.h says why they meet).
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/rank_link.h"

namespace sluice {

class GpuLink : public RankLink {
 public:
  // Queues x [n] f32 = the sum over all ranks, on the rank's GPU, when all ranks' threads are here; while the
  // stream is recorded it waits for nobody. Aborted: the link is broken. DeadlineExceeded: a rank did not
  // come.
  virtual absl::Status Sum(int rank, float* x, int64_t n, cudaStream_t stream) = 0;
  // launch() of every rank, which launches what was recorded with sums in it: the same waits as Sum's.
  virtual absl::Status Launch(const std::function<absl::Status()>& launch) = 0;
  // Returns when all ranks' threads are here: whether all said yes.
  virtual absl::StatusOr<bool> Agree(bool yes) = 0;
  // Changes when the link is mended: what was recorded before must not be replayed. The broken
  // communicators go when the last recording of them has gone.
  virtual int generation() const = 0;
};

// By rank: indices of GPUs. FailedPrecondition: NCCL is missing.
absl::StatusOr<std::shared_ptr<GpuLink>> NewNcclLink(const std::vector<int>& devices);

}  // namespace sluice
