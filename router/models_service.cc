#include "router/models_service.h"

#include "router/request_plan.h"
#include "router/unary_reply.h"

namespace sluice {

v1::Model ModelsService::Describe() const {
  v1::Model out = model_->description;
  const RequestDefaults defaults = defaults_->Get();
  out.set_default_preset(defaults.preset);
  out.set_default_session_preset(defaults.session_preset);
  return out;
}

grpc::ServerUnaryReactor* ModelsService::ListModels(grpc::CallbackServerContext* context,
                                                    const v1::ListModelsRequest*,
                                                    v1::ListModelsResponse* response) {
  *response->add_models() = Describe();
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ModelsService::GetModel(grpc::CallbackServerContext* context,
                                                  const v1::GetModelRequest* request, v1::Model* response) {
  if (request->id().empty()) return Reply(context, BadField("id", "empty; name a model"));
  absl::Status status = CheckModelName(*model_, request->id());
  if (status.ok()) *response = Describe();
  return Reply(context, status);
}

}  // namespace sluice
