// Role: one-line answers of unary RPCs that do not need a reactor class. Threads: pure functions.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "common/rpc/status_codec.h"

namespace sluice {

inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace sluice
