#include "client/connection.h"

#include <grpcpp/generic/generic_stub.h>

#include <future>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/api_key.h"
#include "client/real_range.h"
#include "common/base/status.h"
#include "common/rpc/certificate.h"

namespace sluice {
namespace {

constexpr int kMaxReplyBytes = 64 << 20;  // a session's whole text
constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
constexpr absl::Duration kProbe = absl::Seconds(2);
constexpr char kCredentials[] = "Credentials";
constexpr char kServing = 1;  // HealthCheckResponse.ServingStatus

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const Tls* tls,
                                           const std::string& api_key) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  // A router that has just started is found at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return OpenChannel(address, tls, std::move(arguments), SendsKey(api_key));
}

// Debian ships no health.pb.h. The request is `string service = 1`, the reply `ServingStatus status = 1`: two
// fields do not pay for a copy of the .proto.
std::string EncodeHealthRequest(const std::string& service) {
  // A length below 128 is one byte; service names are.
  return absl::StrCat("\x0A", std::string(1, static_cast<char>(service.size())), service);
}

bool IsServing(const grpc::ByteBuffer& reply) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!reply.Dump(&slices).ok()) return false;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes.size() == 2 && bytes[0] == 0x08 && bytes[1] == kServing;
}

void AddTlsFlags(CLI::App* app, TlsFiles* files) {
  const auto file = [app](const char* flag, TlsFile* out, const char* help, const char* env) {
    out->flag = flag;
    AddOptionalFlag(app, flag, out->path, help, env, kCredentials);
  };
  file("--tls-ca", &files->ca,
       "TLS, with a router whose certificate is of this CA, PEM; \"system\": of one this machine trusts",
       "SLUICE_TLS_CA");
  file("--tls-cert", &files->cert, "own certificate, for a router that asks for one, PEM",
       "SLUICE_CLIENT_TLS_CERT");
  file("--tls-key", &files->key, "its key, PEM", "SLUICE_CLIENT_TLS_KEY");
}

}  // namespace

void AddAdminKeyFlag(CLI::App* app, std::string* key) {
  AddOptionalFlag(app, "--admin-key", *key,
                  "an operator's key; others see it here: rather set SLUICE_ADMIN_KEY", "SLUICE_ADMIN_KEY",
                  kCredentials);
}

void AddOperatorFlags(CLI::App* app, Credentials* credentials) {
  AddTlsFlags(app, &credentials->tls);
  AddAdminKeyFlag(app, &credentials->api_key);
}

void AddCredentialFlags(CLI::App* app, Credentials* credentials) {
  AddTlsFlags(app, &credentials->tls);
  AddOptionalFlag(app, "--api-key", credentials->api_key,
                  "key of a router that asks for one; others see it here: rather set SLUICE_API_KEY",
                  "SLUICE_API_KEY", kCredentials);
}

void AddConnectionFlags(CLI::App* app, ConnectionOptions* options) {
  AddFlag(app, "--router", options->router, "router's public address, host:port", "SLUICE_ROUTER",
          "Connection");
  AddFlag(app, "--timeout", options->timeout_seconds, "deadline of each call [seconds]", "SLUICE_TIMEOUT",
          "Connection")
      ->check(RealRange(0.001, 1e6));
  AddCredentialFlags(app, &options->credentials);
}

absl::Status CheckAddress(const std::string& address, absl::string_view flag) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": want host:port with a port from 1 to 65535, got '", address, "'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const std::string& address,
                                                             absl::string_view flag, absl::Duration timeout,
                                                             Interrupts* interrupts,
                                                             const Credentials& credentials) {
  SLUICE_RETURN_IF_ERROR(CheckAddress(address, flag));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<Tls> tls, Tls::Open(credentials.tls, TlsUse::kClient));
  return std::unique_ptr<Connection>(
      new Connection(address, flag, timeout, interrupts, std::move(tls), credentials));
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionOptions& options,
                                                             Interrupts* interrupts) {
  return Open(options.router, "--router", absl::Seconds(options.timeout_seconds), interrupts,
              options.credentials);
}

Connection::Connection(const std::string& address, absl::string_view flag, absl::Duration timeout,
                       Interrupts* interrupts, std::shared_ptr<Tls> tls, const Credentials& credentials)
    : address_(address),
      flag_(flag),
      timeout_(timeout),
      interrupts_(interrupts),
      tls_files_(credentials.tls),
      tls_(std::move(tls)),
      channel_(MakeChannel(address, tls_.get(), credentials.api_key)) {}

void Connection::SetDeadline(grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
}

absl::Status Connection::Result(const grpc::Status& status, int signal) const {
  if (!status.ok() && signal != 0) return Interrupted();
  const bool answered = MadeByPeer(status);
  absl::Status own = FromGrpcStatus(status);
  if (!answered && absl::IsUnavailable(own)) own = Explain(std::move(own));
  return FromServer(std::move(own), address_, flag_, answered);
}

absl::Status Connection::Explain(absl::Status status) const {
  if (tls_ != nullptr) {
    const absl::Status probe = ProbeTls(address_, tls_files_, "", kProbe);
    return absl::IsUnauthenticated(probe) || absl::IsFailedPrecondition(probe) ? probe : status;
  }
  if (!SpeaksTls(address_, kProbe)) return status;
  return absl::FailedPreconditionError("the router speaks TLS: name its CA with --tls-ca");
}

absl::StatusOr<bool> Connection::Serving(const std::string& service, absl::Duration timeout) const {
  SLUICE_CHECK(service.size() < 128);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  grpc::GenericStub stub(channel_);
  const grpc::Slice slice(EncodeHealthRequest(service));
  grpc::ByteBuffer request(&slice, 1), reply;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, kHealthCheck, grpc::StubOptions(), &request, &reply,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  // NOT_FOUND: the process answers and has not announced the service yet.
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return false;
  if (!status.ok()) return Result(status, 0);
  return IsServing(reply);
}

}  // namespace sluice
