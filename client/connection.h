// Role: the channel to a router: stubs, deadlines, health, Ctrl-C. Why: every command makes calls in the same
// way and names the same flag when they fail. Threads: one caller.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/interrupts.h"
#include "common/rpc/status_codec.h"
#include "common/rpc/tls.h"

namespace sluice {

// What a router may ask of its clients.
struct Credentials {
  TlsFiles tls;
  std::string api_key;
};
// --tls-ca, --tls-cert, --tls-key, --api-key
void AddCredentialFlags(CLI::App* app, Credentials* credentials);
// Of the admin port: --admin-key in the place of --api-key.
void AddOperatorFlags(CLI::App* app, Credentials* credentials);
void AddAdminKeyFlag(CLI::App* app, std::string* key);

struct ConnectionOptions {
  std::string router = "127.0.0.1:7100";
  double timeout_seconds = 600;
  Credentials credentials;
};
// And those of AddCredentialFlags.
void AddConnectionFlags(CLI::App* app, ConnectionOptions* options);

// host:port with a port from 1 to 65535; InvalidArgument names `flag`.
absl::Status CheckAddress(const std::string& address, absl::string_view flag);

class Connection {
 public:
  // address: host:port; flag: the option that names it. interrupts: outlives the connection; null: signals
  // keep their own meaning.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const std::string& address, absl::string_view flag,
                                                          absl::Duration timeout, Interrupts* interrupts,
                                                          const Credentials& credentials = {});
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionOptions& options,
                                                          Interrupts* interrupts);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const std::string& address() const { return address_; }
  Interrupts* interrupts() const { return interrupts_; }

  void SetDeadline(grpc::ClientContext* context) const;
  // A status of gRPC with the address and the flag; Interrupted() after a signal.
  absl::Status Result(const grpc::Status& status, int signal) const;

  // One unary call: Call(&Stub::Method, stub, request).
  template <class Stub, class Request, class Reply>
  absl::StatusOr<Reply> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             Stub* stub, const Request& request) const {
    grpc::ClientContext context;
    SetDeadline(&context);
    CancelOnInterrupt cancel(interrupts_, [&context] { context.TryCancel(); });
    Reply reply;
    absl::Status status = Result((stub->*method)(&context, request, &reply), cancel.signal());
    if (!status.ok()) return status;
    return reply;
  }

  // grpc.health.v1: whether `service` is SERVING. An error: nobody answers in `timeout`.
  absl::StatusOr<bool> Serving(const std::string& service, absl::Duration timeout) const;

 private:
  Connection(const std::string& address, absl::string_view flag, absl::Duration timeout,
             Interrupts* interrupts, std::shared_ptr<Tls> tls, const Credentials& credentials);
  // What gRPC does not tell of a connection that failed.
  absl::Status Explain(absl::Status status) const;

  const std::string address_;
  const std::string flag_;
  const absl::Duration timeout_;
  Interrupts* const interrupts_;
  const TlsFiles tls_files_;
  const std::shared_ptr<Tls> tls_;  // null: none
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace sluice
