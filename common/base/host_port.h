// Role: what a flag that takes host:port may hold. Why: gRPC takes a port modulo 65536, civetweb reads
// options behind it; both say only that they cannot listen. Threads: pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// InvalidArgument names the flag.
absl::Status CheckHostPort(absl::string_view flag, absl::string_view address);

}  // namespace sluice
