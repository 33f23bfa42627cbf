// Role: the public Models service: the one model this router serves. Threads: gRPC's callback pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/authenticator.h"
#include "router/defaults.h"
#include "router/served_model.h"
#include "sluice/v1/models.grpc.pb.h"

namespace sluice {

// What clients are told of the model, with the defaults as they are now.
v1::Model DescribeModel(const ServedModel& model, const RequestDefaults& defaults);

class ModelsService final : public v1::Models::CallbackService {
 public:
  ModelsService(const ServedModel* model, const Defaults* defaults, Authenticator* authenticator)
      : model_(model), defaults_(defaults), authenticator_(authenticator) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::Model* response) override;

 private:
  const ServedModel* const model_;
  const Defaults* const defaults_;
  Authenticator* const authenticator_;
};

}  // namespace sluice
