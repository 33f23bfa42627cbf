// Role: ResolvedGates <-> its message of the internal package. Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "common/compression/resolved_gates.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

internal::v1::ResolvedGates GatesToProto(const ResolvedGates& gates);
// InvalidArgument names the field: an enumerator that this build does not know, or a negative size.
absl::StatusOr<ResolvedGates> GatesFromProto(const internal::v1::ResolvedGates& gates);

}  // namespace sluice
