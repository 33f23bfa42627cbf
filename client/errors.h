// Role: an error as a person should read it: what happened, where, and which flag to change.
// Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Marks `status` as the answer of the server at `address`, which `flag` names; answered false: as a failure
// to reach it.
absl::Status FromServer(absl::Status status, absl::string_view address, absl::string_view flag,
                        bool answered);

// Ctrl-C or SIGTERM ended the command.
absl::Status Interrupted();
bool IsInterrupted(const absl::Status& status);

// One line, then indented lines with the details of a server's error. No line feed at the end.
std::string DescribeError(const absl::Status& status);

}  // namespace sluice
