// Role: how an attempt ended, for the caller, the metrics' `reason` label and the log. Threads: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

enum class HandoffReason {
  kNone,  // committed
  kBusy,
  kIncompatible,
  kTooLarge,
  kStale,
  kOfferTimeout,
  kNoProgress,
  kLeaseExpired,
  kDeadline,
  kPeerLost,
  kIntegrity,
  kTransport,
  kAborted,       // by the owner of this end
  kPeerAborted,   // by the other end
  kSuperseded,    // by a higher attempt
  kOfferRefused,  // by this end's own machine
  kNotRetained,   // a new attempt came when the kept set was gone
};
absl::string_view ReasonName(HandoffReason reason);  // "none", "busy", ...: a metric label
std::vector<std::string> FailureReasonNames();       // of all but kNone

struct HandoffStats {
  int64_t bytes = 0;  // of slabs that were acknowledged
  int slabs = 0;
  int retries = 0;
  absl::Duration wire = absl::ZeroDuration();  // first Push to last SlabAck
};

struct HandoffResult {
  HandoffReason reason = HandoffReason::kNone;
  std::string detail;
  absl::Duration retry_after = absl::ZeroDuration();  // kBusy
  HandoffStats stats;
  bool committed() const { return reason == HandoffReason::kNone; }
  // The kept layers are whole: another attempt can be served from them without a new prefill.
  bool retained() const { return !committed() && reason != HandoffReason::kAborted; }
};

}  // namespace sluice
