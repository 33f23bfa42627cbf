#include "common/session/memory_store.h"
#include "common/session/sqlite_store.h"
#include "tests/common/session/store_kinds.h"

namespace sluice {

std::vector<StoreKind> StoreKinds() {
  return {
      {"Memory", [](const ScratchDir&, const SessionLimits& limits) { return NewMemoryStore(limits); }},
      {"Sqlite",
       [](const ScratchDir& dir, const SessionLimits& limits) {
         return OpenSqliteStore(dir.file("sessions.db"), limits);
       }},
  };
}

}  // namespace sluice
