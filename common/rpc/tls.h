// Role: the TLS of one listener and of the channels to it: PEM files, read again when they change, as gRPC
// credentials. Why not gRPC's own file watcher: with files that do not fit together it refuses every
// connection; here those of before hold, and the log says what is wrong. A connection keeps what it began
// with. Threads: one of its own ("certificates"), which looks at the files every second; the rest from any.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_stamp.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace sluice {

struct TlsFile {
  std::string path;
  std::string flag;  // the option that names it, for error texts
};
struct TlsFiles {
  TlsFile cert;  // own certificate, then those between it and the CA
  TlsFile key;   // of cert
  TlsFile ca;    // of the peers' certificates
  bool any() const { return !cert.path.empty() || !key.path.empty() || !ca.path.empty(); }
};

// ca.path that means what this machine trusts.
inline constexpr char kSystemCa[] = "system";

struct TlsPems {
  std::string cert, key, ca;
  absl::Time expires = absl::InfiniteFuture();  // of cert
};

enum class TlsUse {
  kServer,  // cert and key; with ca, clients must show a certificate of it
  kMutual,  // all three, at both ends
  kClient,  // ca; with cert and key, they are shown
};

class Tls {
 public:
  // Null when no file is named. InvalidArgument names the flag: one is missing, cannot be read, is of no use
  // or has expired. peer_name: whom peers' certificates must name; empty: the host that is dialled.
  static absl::StatusOr<std::shared_ptr<Tls>> Open(TlsFiles files, TlsUse use, std::string peer_name = "");
  ~Tls();

  std::shared_ptr<grpc::ServerCredentials> ForServer();
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;
  const std::string& peer_name() const { return peer_name_; }
  TlsPems Current() const;
  // Grows with every set of files taken: a channel made before holds the older ones.
  int generation() const;

  // Of the own certificate; called now and after every change, on the thread of this. Null ends it.
  void OnExpiry(std::function<void(absl::Time)> tell);

  // Takes the files now if they have changed.
  void Reload();

 private:
  struct Fetcher;
  class ServerCredentials;
  Tls(TlsFiles files, TlsUse use, std::string peer_name);
  absl::StatusOr<TlsPems> Read() const;
  std::vector<FileStamp> Stamps() const;
  void Run();

  const TlsFiles files_;
  const TlsUse use_;
  const std::string peer_name_;
  Mutex reload_mu_;  // one at a time
  std::vector<FileStamp> stamps_ ABSL_GUARDED_BY(reload_mu_);
  std::function<void(absl::Time)> tell_ ABSL_GUARDED_BY(reload_mu_);
  mutable Mutex mu_;
  CondVar wake_;
  TlsPems pems_ ABSL_GUARDED_BY(mu_);
  int generation_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  NamedThread thread_;
};

// The one way to make a channel. tls: null for none.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const Tls* tls, grpc::ChannelArguments arguments = {},
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors = {});

}  // namespace sluice
