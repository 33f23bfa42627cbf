// Role: when prefill workers would have computed a prompt, as policies and admission reckon.
// Threads: pure functions.
#pragma once

#include <vector>

#include "router/policies/route_policy.h"

namespace sluice {

// Of each, in seconds from now: what is ahead of the prompt there, and the prompt, at the rate that the
// worker measured. from_cache: but for what it holds of the prompt. A worker without a rate gets the mean of
// the others'; where none has one, the unit is a token.
std::vector<double> PrefillSeconds(const RouteQuery& query, absl::Span<const Candidate> candidates,
                                   bool from_cache);

// The index of the least; of those as good within what measured rates vary by, the one with the fewest bytes
// of kept KV on their way, then the fewest requests.
size_t Soonest(absl::Span<const double> seconds, absl::Span<const Candidate> candidates);

}  // namespace sluice
