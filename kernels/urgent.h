// Role: queues whose short ops go before what other queues of the device have waiting. Why: a slab that is
// sent would wait behind products that take the whole device for milliseconds, and a request waits for the
// slab. Why apart from Backend: only some devices can put one queue before another. Threads: any.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace sluice {

// A Backend that is one of these can.
class UrgentQueues {
 public:
  virtual ~UrgentQueues() = default;
  virtual std::unique_ptr<Ops> NewUrgentOps() = 0;
};

// Backend::NewOps, urgent where the backend can.
std::unique_ptr<Ops> NewUrgentOps(Backend* backend);

}  // namespace sluice
