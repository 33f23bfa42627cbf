// Role: what Admin.GetStats and WatchStats tell. Threads: ReadStats on the work pool (it asks the store);
// WatchStats any.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/run_services.h"
#include "sluice/v1/admin.pb.h"

namespace sluice {

absl::Status ReadStats(const RunServices& services, absl::Time started, v1::Stats* stats);

// A stream of them, now and every `interval`, until the client leaves or the router stops. One that the
// client has not taken yet is not followed by another.
grpc::ServerWriteReactor<v1::Stats>* WatchStats(const RunServices* services, absl::Time started,
                                                absl::Duration interval);

}  // namespace sluice
