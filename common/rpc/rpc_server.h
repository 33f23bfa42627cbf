// Role: one gRPC listener: services, health, reflection on request, TLS, bounds on what clients can make it
// hold, a stop with a deadline. Threads: gRPC's own callback pool; "accept" (ConnectionGate).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/connection_gate.h"
#include "common/rpc/tls.h"

namespace sluice {

struct RpcServerOptions {
  std::string address;  // host:port; port 0 takes a free one
  std::string flag;     // the option that set it, for error texts
  bool reflection = false;
  int max_message_bytes = 64 << 20;
  int max_streams_per_connection = 4096;
  std::shared_ptr<Tls> tls = nullptr;  // null: none
  ConnectionBounds connections = {};
  // Of messages on their way in, over all connections; above it gRPC ends the streams that hold most.
  size_t max_buffered_bytes = size_t{4} << 30;
  absl::Duration handshake_timeout = absl::Seconds(20);  // until TLS and HTTP/2 have begun
  absl::Duration max_idle = absl::InfiniteDuration();    // a connection without a call is closed after
  absl::Duration max_age = absl::InfiniteDuration();     // takes no new calls after; twice that, it is closed
  absl::Duration keepalive = absl::Seconds(60);          // a silent peer is probed, and given up
};

class RpcServer {
 public:
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          const std::vector<grpc::Service*>& services);
  ~RpcServer();

  int port() const { return gate_->port(); }
  int connections() const { return gate_->open(); }
  // grpc.health.v1: "" is the process, the others are announced by name.
  void SetServing(const std::string& service, bool serving);
  // Refuses new calls, waits for running ones up to the deadline, then cancels them. Idempotent.
  void Stop(absl::Duration deadline);

 private:
  RpcServer() = default;
  std::shared_ptr<Tls> tls_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // gRPC asks it for certificates to the end
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sluice
