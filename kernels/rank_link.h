// Role: what joins the backends of one model's ranks, so that Ops::AllReduce of one meets those of the
// others. Why breakable: a rank that fails never comes to the next sum, and the others must not wait for it.
// Threads: any.
#pragma once

#include "absl/status/status.h"

namespace sluice {

class RankLink {
 public:
  virtual ~RankLink() = default;
  // Ends every AllReduce under way, and every later one, on all ranks; their queues' Sync() says so.
  virtual void Break() = 0;
  // After Break, when no rank has anything queued: sums work again.
  virtual absl::Status Mend() = 0;
};

}  // namespace sluice
