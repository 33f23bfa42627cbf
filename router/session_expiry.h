// Role: deletes sessions that nobody has used for their time to live. Threads: the work pool.
#pragma once

#include "router/run_services.h"

namespace sluice {

// Every session without a commit since `updated_before_unix_ms`, but for those with a turn under way.
void ExpireSessions(const RunServices& services, int64_t updated_before_unix_ms);

}  // namespace sluice
