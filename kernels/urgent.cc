#include "kernels/urgent.h"

namespace sluice {

std::unique_ptr<Ops> NewUrgentOps(Backend* backend) {
  auto* urgent = dynamic_cast<UrgentQueues*>(backend);
  return urgent == nullptr ? backend->NewOps() : urgent->NewUrgentOps();
}

}  // namespace sluice
