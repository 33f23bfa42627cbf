// Role: the smallest server: GetModel answers with the id asked for. Threads: gRPC's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/time/clock.h"
#include "sluice/v1/models.grpc.pb.h"
#include "tests/support/patience.h"

namespace sluice {

class EchoService final : public v1::Models::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::Model* response) override {
    response->set_id(request->id());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// Channels of one test do not share connections with those of another.
inline grpc::ChannelArguments OwnConnection() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

inline grpc::Status Echo(const std::shared_ptr<grpc::Channel>& channel, const std::string& id = "x") {
  auto stub = v1::Models::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(10)));
  v1::GetModelRequest request;
  request.set_id(id);
  v1::Model model;
  grpc::Status status = stub->GetModel(&context, request, &model);
  if (status.ok() && model.id() != id) return {grpc::StatusCode::INTERNAL, "another id"};
  return status;
}

}  // namespace sluice
