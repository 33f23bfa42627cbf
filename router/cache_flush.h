// Role: Admin.FlushCache: has prefill workers forget what they hold of sessions. Threads: gRPC's callback
// pool.
#pragma once

#include <functional>

#include "router/run_services.h"
#include "sluice/v1/admin.pb.h"

namespace sluice {

// Asks all at once; `done` comes once, when each has answered or failed, and `response` outlives it.
// NotFound: no ready prefill worker has the name that is asked for.
void FlushCaches(const RunServices& services, const v1::FlushCacheRequest& request,
                 v1::FlushCacheResponse* response, std::function<void(absl::Status)> done);

}  // namespace sluice
