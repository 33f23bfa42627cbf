// Role: one-line answers of unary RPCs that do not need a reactor class. Threads: pure functions.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/rpc/status_codec.h"

namespace sluice {

inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

inline absl::Status NotServed(absl::string_view rpc) {
  return absl::UnimplementedError(absl::StrCat(rpc, " is not served by this router"));
}

}  // namespace sluice
