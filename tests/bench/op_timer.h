// Role: how long chosen ops of one queue take on their device. Threads: as the Ops.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace sluice {

class OpTimer {
 public:
  virtual ~OpTimer() = default;
  virtual void Begin() = 0;   // before the op is queued
  virtual void End() = 0;     // after it
  virtual double Take() = 0;  // seconds between all pairs since the last Take; the queue has been synced
};

// Events in the stream. Null: ops are not a GPU's, or the build has no CUDA.
std::unique_ptr<OpTimer> NewGpuTimer(Ops& ops);

}  // namespace sluice
