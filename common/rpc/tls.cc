#include "common/rpc/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/certificate.h"

namespace sluice {
namespace {

constexpr absl::Duration kLook = absl::Seconds(1);

absl::Status Missing(const TlsFile& file, const TlsFile& because) {
  return absl::InvalidArgumentError(absl::StrCat(file.flag, ": missing, ", because.flag, " needs it"));
}

}  // namespace

// What gRPC asks for certificates, at every handshake.
struct Tls::Fetcher {
  Tls* const tls;
  Mutex mu;
  int taken ABSL_GUARDED_BY(mu) = 0;

  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    auto* fetcher = static_cast<Fetcher*>(self);
    MutexLock lock(&fetcher->mu);
    MutexLock tls_lock(&fetcher->tls->mu_);
    if (fetcher->taken == fetcher->tls->generation_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    fetcher->taken = fetcher->tls->generation_;
    const TlsPems& pems = fetcher->tls->pems_;
    const grpc_ssl_pem_key_cert_pair pair = {pems.key.c_str(), pems.cert.c_str()};
    // gRPC insists on roots, also where no client is asked for a certificate.
    const std::string& roots = pems.ca.empty() ? pems.cert : pems.ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
};

// gRPC's C++ has no certificates that change and keep the old ones at a mistake; its C has.
class Tls::ServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ServerCredentials(Tls* tls, bool wants_client) : fetcher_{tls, {}} {
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            wants_client ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                         : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            Fetcher::Fetch, &fetcher_));
  }
  ~ServerCredentials() override { grpc_server_credentials_release(credentials_); }
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    SLUICE_CHECK(false);  // keys are read by the services
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }
  Fetcher fetcher_;
  grpc_server_credentials* credentials_;
};

absl::StatusOr<std::shared_ptr<Tls>> Tls::Open(TlsFiles files, TlsUse use, std::string peer_name) {
  if (!files.any()) return std::shared_ptr<Tls>();
  const TlsFile& named = !files.cert.path.empty()  ? files.cert
                         : !files.key.path.empty() ? files.key
                                                   : files.ca;
  if (use != TlsUse::kClient || &named != &files.ca) {
    if (files.cert.path.empty()) return Missing(files.cert, named);
    if (files.key.path.empty()) return Missing(files.key, named);
  }
  if (use != TlsUse::kServer && files.ca.path.empty()) return Missing(files.ca, named);
  std::shared_ptr<Tls> tls(new Tls(std::move(files), use, std::move(peer_name)));
  {
    MutexLock reload_lock(&tls->reload_mu_);
    MutexLock lock(&tls->mu_);
    tls->stamps_ = tls->Stamps();
    SLUICE_ASSIGN_OR_RETURN(tls->pems_, tls->Read());
  }
  tls->thread_ = NamedThread("certificates", [tls = tls.get()] { tls->Run(); });
  return tls;
}

Tls::Tls(TlsFiles files, TlsUse use, std::string peer_name)
    : files_(std::move(files)), use_(use), peer_name_(std::move(peer_name)) {}

Tls::~Tls() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

absl::StatusOr<TlsPems> Tls::Read() const {
  TlsPems pems;
  if (!files_.cert.path.empty()) {
    SLUICE_ASSIGN_OR_RETURN(pems.cert, ReadPem(files_.cert));
    SLUICE_ASSIGN_OR_RETURN(pems.key, ReadPem(files_.key));
    SLUICE_ASSIGN_OR_RETURN(pems.expires, CheckOwnCertificate(files_.cert, pems.cert, files_.key, pems.key));
  }
  if (!files_.ca.path.empty() && files_.ca.path != kSystemCa) {
    SLUICE_ASSIGN_OR_RETURN(pems.ca, ReadPem(files_.ca));
    SLUICE_RETURN_IF_ERROR(CheckCa(files_.ca, pems.ca));
  }
  return pems;
}

std::vector<FileStamp> Tls::Stamps() const {
  return {StampOf(files_.cert.path), StampOf(files_.key.path), StampOf(files_.ca.path)};
}

void Tls::Reload() {
  MutexLock reload_lock(&reload_mu_);
  std::vector<FileStamp> stamps = Stamps();
  if (stamps == stamps_) return;
  stamps_ = std::move(stamps);
  absl::StatusOr<TlsPems> pems = Read();
  if (!pems.ok()) {
    spdlog::warn("certificates not reloaded, those of before hold error=\"{}\"",
                 std::string(pems.status().message()));
    return;
  }
  const absl::Time expires = pems->expires;
  {
    MutexLock lock(&mu_);
    pems_ = *std::move(pems);
    ++generation_;
  }
  spdlog::info("certificates reloaded expires={}", absl::FormatTime(expires, absl::UTCTimeZone()));
  if (tell_ != nullptr) tell_(expires);
}

void Tls::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (!stopped_) wake_.WaitFor(&mu_, kLook);
      if (stopped_) return;
    }
    Reload();
  }
}

std::shared_ptr<grpc::ServerCredentials> Tls::ForServer() {
  return std::make_shared<ServerCredentials>(this, !files_.ca.path.empty());
}

std::shared_ptr<grpc::ChannelCredentials> Tls::ForChannel() const {
  MutexLock lock(&mu_);
  return grpc::SslCredentials({pems_.ca, pems_.key, pems_.cert});
}

TlsPems Tls::Current() const {
  MutexLock lock(&mu_);
  return pems_;
}

int Tls::generation() const {
  MutexLock lock(&mu_);
  return generation_;
}

void Tls::OnExpiry(std::function<void(absl::Time)> tell) {
  MutexLock reload_lock(&reload_mu_);
  tell_ = std::move(tell);
  if (tell_ == nullptr) return;
  MutexLock lock(&mu_);
  tell_(pems_.expires);
}

std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const Tls* tls, grpc::ChannelArguments arguments,
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors) {
  if (tls != nullptr && !tls->peer_name().empty()) arguments.SetSslTargetNameOverride(tls->peer_name());
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, tls == nullptr ? grpc::InsecureChannelCredentials() : tls->ForChannel(), arguments,
      std::move(interceptors));
}

}  // namespace sluice
