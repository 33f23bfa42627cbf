// Role: router, prefill and decode on this machine as children of one command, until Ctrl-C, SIGTERM or the
// death of one of them. Threads: main.
#pragma once

#include "absl/status/statusor.h"
#include "client/console.h"
#include "client/up_plan.h"

namespace sluice {

// What is empty in `options` takes its default. Prints "ready ..." on stdout when the router serves; returns
// the exit code: 0 after SIGTERM, 130 after Ctrl-C.
absl::StatusOr<int> RunUp(UpOptions options, const Console& console);

}  // namespace sluice
