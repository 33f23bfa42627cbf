// Role: Admin's Drain and Undrain: no new requests for a worker, or for this router, and a stream that counts
// down what is left. Why it exists: a drain outlives the call that ordered it. Threads: any; streams look on
// "timers".
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "router/registry_service.h"
#include "router/run_services.h"
#include "sluice/v1/admin.pb.h"

namespace sluice {

class Drains {
 public:
  // drain_router: begins or ends this router's own drain.
  Drains(const RunServices* services, RegistryService* registry, std::function<void(bool)> drain_router)
      : services_(services), registry_(registry), drain_router_(std::move(drain_router)) {}

  grpc::ServerWriteReactor<v1::DrainProgress>* Drain(const v1::DrainRequest& request);
  absl::Status Undrain(const v1::UndrainRequest& request);

 private:
  class Watch;
  // What the stream of this request looks at.
  absl::StatusOr<std::function<DrainState()>> Begin(const v1::DrainRequest& request);

  const RunServices* const services_;
  RegistryService* const registry_;
  const std::function<void(bool)> drain_router_;
};

}  // namespace sluice
