#include "common/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            const std::vector<grpc::Service*>& services) {
  SLUICE_RETURN_IF_ERROR(CheckHostPort(options.flag, options.address));
  static std::once_flag health;
  std::call_once(health, [] { grpc::EnableDefaultHealthCheckService(true); });
  if (options.reflection) {
    static std::once_flag reflection;
    std::call_once(reflection, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
  }
  auto server = std::unique_ptr<RpcServer>(new RpcServer());
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers watch idle connections (a prompt computes in silence); by default gRPC hangs up on them for it.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &server->port_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address,
                     ": is the port taken, or the host not of this machine? Change ", options.flag));
  }
  server->SetServing("", true);
  return server;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::SetServing(const std::string& service, bool serving) {
  if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(service, serving);
}

void RpcServer::Stop(absl::Duration deadline) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  server_->Wait();
  server_.reset();
}

}  // namespace sluice
