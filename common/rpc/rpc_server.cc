#include "common/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kMaxHeaderBytes = 16 << 10;  // a call's, keys included
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(20);

}  // namespace

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
  SLUICE_ASSIGN_OR_RETURN(server->gate_,
                          ConnectionGate::Listen(options.address, options.flag, options.connections));
  server->tls_ = options.tls;
  server->credentials_ =
      options.tls == nullptr ? grpc::InsecureServerCredentials() : options.tls->ForServer();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota(options.flag).Resize(options.max_buffered_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  const auto set_time = [&builder](const char* argument, absl::Duration time) {
    if (time != absl::InfiniteDuration())
      builder.AddChannelArgument(argument, static_cast<int>(absl::ToInt64Milliseconds(time)));
  };
  set_time(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.handshake_timeout);
  set_time(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.max_idle);
  set_time(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_age);
  set_time(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, options.max_age);
  set_time(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive);
  set_time(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeout);
  // Peers watch idle connections (a prompt computes in silence); by default gRPC hangs up on them for it.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server->acceptor_ =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, server->credentials_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr)
    return absl::UnavailableError(absl::StrCat(options.flag, " ", options.address, ": gRPC does not start"));
  server->gate_->Start([acceptor = server->acceptor_.get()](int listener_fd, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  server->SetServing("", true);
  return server;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::SetServing(const std::string& service, bool serving) {
  if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(service, serving);
}

void RpcServer::Stop(absl::Duration deadline) {
  if (server_ == nullptr) return;
  gate_->Stop();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  server_->Wait();
  server_.reset();
}

}  // namespace sluice
