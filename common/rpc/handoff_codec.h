// Role: the hand-off's messages between their native form (common/handoff/messages.h) and protobuf.
// Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "common/handoff/messages.h"
#include "sluice/internal/v1/handoff.pb.h"

namespace sluice {

internal::v1::HandoffMessage HandoffToProto(const HandoffMessage& message);

// InvalidArgument: the message has no known body, or an enumerator this build does not know.
absl::StatusOr<HandoffMessage> HandoffFromProto(const internal::v1::HandoffMessage& message);

}  // namespace sluice
