// Role: WorkerRegistry on the internal port: one stream is one worker's lease, and the way of its orders.
// Threads: gRPC's callback pool; Tell from any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>

#include "common/base/mutex.h"
#include "router/cluster.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {

class RegistryService final : public internal::v1::WorkerRegistry::CallbackService {
 public:
  explicit RegistryService(Cluster* cluster) : cluster_(cluster) {}

  grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply>* Register(
      grpc::CallbackServerContext* context) override;

  // The worker hears of its orders now, not with the answer to its next report.
  void Tell(const std::string& incarnation);

 private:
  class Lease;

  Cluster* const cluster_;
  Mutex mu_;
  std::map<std::string, Lease*> leases_ ABSL_GUARDED_BY(mu_);  // by incarnation
};

}  // namespace sluice
