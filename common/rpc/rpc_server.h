// Role: one gRPC listener: services, health, reflection on request, bounded messages, a stop with a deadline.
// Threads: gRPC's own callback pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

struct RpcServerOptions {
  std::string address;  // host:port; port 0 takes a free one
  std::string flag;     // the option that set it, for error texts
  bool reflection = false;
  int max_message_bytes = 64 << 20;
  int max_streams_per_connection = 4096;
};

class RpcServer {
 public:
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          const std::vector<grpc::Service*>& services);
  ~RpcServer();

  int port() const { return port_; }
  // grpc.health.v1: "" is the process, the others are announced by name.
  void SetServing(const std::string& service, bool serving);
  // Refuses new calls, waits for running ones up to the deadline, then cancels them. Idempotent.
  void Stop(absl::Duration deadline);

 private:
  RpcServer() = default;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace sluice
