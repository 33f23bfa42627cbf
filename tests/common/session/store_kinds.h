// Role: the stores that a program's conformance suite runs over. Threads: one caller.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/session/session_store.h"
#include "tests/common/session/scratch_dir.h"

namespace sluice {

struct StoreKind {
  std::string name;
  // A new, empty store. NotFound: what it needs is not on this machine, and why.
  std::function<absl::StatusOr<std::unique_ptr<SessionStore>>(const ScratchDir&, const SessionLimits&)> make;
};

std::vector<StoreKind> StoreKinds();

}  // namespace sluice
