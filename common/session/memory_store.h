// Role: sessions of one process, gone with it: tests, and routers that need no memory.
// Why it exists: the simple reference that the database stores are compared with.
// Threads: any; one lock.
#pragma once

#include <memory>

#include "common/session/session_store.h"

namespace sluice {

std::unique_ptr<SessionStore> NewMemoryStore(const SessionLimits& limits);

}  // namespace sluice
