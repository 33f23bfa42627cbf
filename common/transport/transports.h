// Role: the one list of transports. Adding one: a file, a test, a line in transports.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"

namespace sluice {

struct TransportOptions {
  std::string ucx_tls;         // of "ucx": UcxOptions::tls; empty: its default
  Backend* backend = nullptr;  // whose ops read and write the rings; null: no ops do. Outlives the transport
};

// name: one of TransportNames(). InvalidArgument lists them.
absl::StatusOr<std::unique_ptr<KvTransport>> MakeTransport(absl::string_view name,
                                                           const TransportOptions& options);
std::vector<std::string> TransportNames();
std::vector<std::string> ProcessTransportNames();  // those that leave the process

}  // namespace sluice
