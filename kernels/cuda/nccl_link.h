// Role: joins the GPUs of one model's ranks: one NCCL communicator a rank, all in this process. Without
// NCCL's header nccl_link_absent.cc is built in its place. Threads: any; Sum of a rank from one at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/rank_link.h"

namespace sluice {

class GpuLink : public RankLink {
 public:
  // Queues x [n] f32 = the sum over all ranks, on the rank's GPU. Aborted: the link is broken.
  virtual absl::Status Sum(int rank, float* x, int64_t n, cudaStream_t stream) = 0;
  // Changes when the link is mended: what was recorded before must not be replayed. The broken
  // communicators go when the last recording of them has gone.
  virtual int generation() const = 0;
};

// By rank: indices of GPUs. FailedPrecondition: NCCL is missing.
absl::StatusOr<std::shared_ptr<GpuLink>> NewNcclLink(const std::vector<int>& devices);

}  // namespace sluice
