#include "router/models_service.h"

#include "router/request_plan.h"
#include "router/unary_reply.h"

namespace sluice {

v1::Model DescribeModel(const ServedModel& model, const RequestDefaults& defaults) {
  v1::Model out = model.description;
  out.set_default_preset(defaults.preset);
  out.set_default_session_preset(defaults.session_preset);
  return out;
}

grpc::ServerUnaryReactor* ModelsService::ListModels(grpc::CallbackServerContext* context,
                                                    const v1::ListModelsRequest*,
                                                    v1::ListModelsResponse* response) {
  absl::StatusOr<Caller> caller = authenticator_->Admit(AuthorizationOf(*context));
  if (!caller.ok()) return Reply(context, caller.status());
  *response->add_models() = DescribeModel(*model_, defaults_->Get());
  caller->Leave();
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ModelsService::GetModel(grpc::CallbackServerContext* context,
                                                  const v1::GetModelRequest* request, v1::Model* response) {
  absl::StatusOr<Caller> caller = authenticator_->Admit(AuthorizationOf(*context));
  if (!caller.ok()) return Reply(context, caller.status());
  if (request->id().empty()) return Reply(context, BadField("id", "empty; name a model"));
  absl::Status status = CheckModelName(*model_, request->id());
  if (status.ok()) *response = DescribeModel(*model_, defaults_->Get());
  caller->Leave();
  return Reply(context, status);
}

}  // namespace sluice
