#include "common/handoff/result.h"

namespace sluice {

absl::string_view ReasonName(HandoffReason reason) {
  switch (reason) {
    case HandoffReason::kNone:
      return "none";
    case HandoffReason::kBusy:
      return "busy";
    case HandoffReason::kIncompatible:
      return "incompatible";
    case HandoffReason::kTooLarge:
      return "too_large";
    case HandoffReason::kStale:
      return "stale";
    case HandoffReason::kOfferTimeout:
      return "offer_timeout";
    case HandoffReason::kNoProgress:
      return "no_progress";
    case HandoffReason::kLeaseExpired:
      return "lease_expired";
    case HandoffReason::kDeadline:
      return "deadline";
    case HandoffReason::kPeerLost:
      return "peer_lost";
    case HandoffReason::kIntegrity:
      return "integrity";
    case HandoffReason::kTransport:
      return "transport";
    case HandoffReason::kAborted:
      return "aborted";
    case HandoffReason::kPeerAborted:
      return "peer_aborted";
    case HandoffReason::kSuperseded:
      return "superseded";
  }
  return "unknown";
}

}  // namespace sluice
