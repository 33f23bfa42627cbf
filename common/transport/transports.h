// Role: the one list of transports. Adding one: a file, a test, a line in transports.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transport/kv_transport.h"

namespace sluice {

struct TransportOptions {
  std::string ucx_tls;  // of "ucx": UcxOptions::tls; empty: its default
};

// name: one of TransportNames(). InvalidArgument lists them.
absl::StatusOr<std::unique_ptr<KvTransport>> MakeTransport(absl::string_view name,
                                                           const TransportOptions& options);
std::vector<std::string> TransportNames();
std::vector<std::string> ProcessTransportNames();  // those that leave the process

}  // namespace sluice
