// Role: the public Models service: the one model this router serves. Threads: gRPC's callback pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/served_model.h"
#include "sluice/v1/models.grpc.pb.h"

namespace sluice {

class ModelsService final : public v1::Models::CallbackService {
 public:
  explicit ModelsService(const ServedModel* model) : model_(model) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::Model* response) override;

 private:
  const ServedModel* const model_;
};

}  // namespace sluice
