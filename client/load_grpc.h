// Role: a Sluice router as the target of a load. Threads: gRPC's own, no thread per request.
#pragma once

#include <memory>

#include "client/connection.h"
#include "client/load_target.h"

namespace sluice {

// connection: outlives the target. Asks the router what it serves.
absl::StatusOr<std::unique_ptr<LoadTarget>> LoadRouter(const Connection* connection);

}  // namespace sluice
