// Role: the options that name certificates: of what clients dial, and between our own processes. Why: three
// programs have them, under the same names. Threads: main.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/tls.h"

namespace sluice {

// --tls-cert, --tls-key, --tls-client-ca
void AddPublicTlsFlags(CLI::App* app, TlsFiles* files);

struct InternalTls {
  TlsFiles files;
  std::string peer_name;
};
// --internal-tls-cert, -key, -ca, -name
void AddInternalTlsFlags(CLI::App* app, InternalTls* options);
// Null without files.
absl::StatusOr<std::shared_ptr<Tls>> OpenInternalTls(const InternalTls& options);

}  // namespace sluice
