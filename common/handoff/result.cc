#include "common/handoff/result.h"

namespace sluice {
namespace {

// By HandoffReason.
constexpr const char* kNames[] = {
    "none",        "busy",          "incompatible", "too_large",     "stale",       "offer_timeout",
    "no_progress", "lease_expired", "deadline",     "peer_lost",     "integrity",   "transport",
    "aborted",     "peer_aborted",  "superseded",   "offer_refused", "not_retained"};
static_assert(std::size(kNames) == static_cast<size_t>(HandoffReason::kNotRetained) + 1);

}  // namespace

absl::string_view ReasonName(HandoffReason reason) { return kNames[static_cast<size_t>(reason)]; }

std::vector<std::string> FailureReasonNames() { return {std::begin(kNames) + 1, std::end(kNames)}; }

}  // namespace sluice
