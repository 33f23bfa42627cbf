#include "common/rpc/tls_flags.h"

namespace sluice {
namespace {

void Add(CLI::App* app, const char* flag, TlsFile* file, const char* help, const char* env) {
  file->flag = flag;
  app->add_option(flag, file->path, help)->envname(env)->group("TLS")->type_name("FILE");
}

}  // namespace

void AddPublicTlsFlags(CLI::App* app, TlsFiles* files) {
  Add(app, "--tls-cert", &files->cert,
      "certificate of --listen, --http-listen and --admin-listen, PEM, read again when it changes",
      "SLUICE_TLS_CERT");
  Add(app, "--tls-key", &files->key, "its key, PEM", "SLUICE_TLS_KEY");
  Add(app, "--tls-client-ca", &files->ca, "clients must show a certificate of this CA, PEM (default: none)",
      "SLUICE_TLS_CLIENT_CA");
}

void AddInternalTlsFlags(CLI::App* app, InternalTls* options) {
  Add(app, "--internal-tls-cert", &options->files.cert,
      "own certificate between router and workers, PEM, read again when it changes; both ends show one",
      "SLUICE_INTERNAL_TLS_CERT");
  Add(app, "--internal-tls-key", &options->files.key, "its key, PEM", "SLUICE_INTERNAL_TLS_KEY");
  Add(app, "--internal-tls-ca", &options->files.ca, "CA of the other processes' certificates, PEM",
      "SLUICE_INTERNAL_TLS_CA");
  app->add_option("--internal-tls-name", options->peer_name,
                  "name that the certificates of those dialled must carry (default: the host dialled)")
      ->envname("SLUICE_INTERNAL_TLS_NAME")
      ->group("TLS");
}

absl::StatusOr<std::shared_ptr<Tls>> OpenInternalTls(const InternalTls& options) {
  return Tls::Open(options.files, TlsUse::kMutual, options.peer_name);
}

}  // namespace sluice
