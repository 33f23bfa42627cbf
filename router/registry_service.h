// Role: WorkerRegistry on the internal port: one stream is one worker's lease. Threads: gRPC's callback pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/cluster.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {

class RegistryService final : public internal::v1::WorkerRegistry::CallbackService {
 public:
  explicit RegistryService(Cluster* cluster) : cluster_(cluster) {}

  grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply>* Register(
      grpc::CallbackServerContext* context) override;

 private:
  Cluster* const cluster_;
};

}  // namespace sluice
