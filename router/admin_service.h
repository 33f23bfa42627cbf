// Role: the operators' service, on a port of its own. Threads: gRPC's callback pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/drains.h"
#include "router/run_services.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice {

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const RunServices* services, Drains* drains)
      : services_(services), drains_(drains), started_(services->clock->Now()) {}

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context, const v1::GetStatsRequest* request,
                                     v1::Stats* response) override;
  grpc::ServerWriteReactor<v1::Stats>* WatchStats(grpc::CallbackServerContext* context,
                                                  const v1::WatchStatsRequest* request) override;
  grpc::ServerWriteReactor<v1::DrainProgress>* Drain(grpc::CallbackServerContext* context,
                                                     const v1::DrainRequest* request) override;
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context, const v1::UndrainRequest* request,
                                    v1::UndrainResponse* response) override;
  grpc::ServerUnaryReactor* AbortRequest(grpc::CallbackServerContext* context,
                                         const v1::AbortRequestRequest* request,
                                         v1::AbortRequestResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;
  grpc::ServerUnaryReactor* SetDefaults(grpc::CallbackServerContext* context,
                                        const v1::SetDefaultsRequest* request,
                                        v1::SetDefaultsResponse* response) override;

 private:
  // Whether an operator asks.
  absl::Status Check(const grpc::CallbackServerContext& context) const;

  const RunServices* const services_;
  Drains* const drains_;
  const absl::Time started_;
};

}  // namespace sluice
