// Role: whether a request that names how soon it wants its tokens is taken, taken with a lower budget, or
// refused before anything is computed. Why it exists: a reply that comes too late costs as much as one in
// time; who is refused at once may ask elsewhere. A pure decision over what workers measured: where nothing
// is measured, nothing is refused. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/compression/compression_spec.h"
#include "router/policies/route_policy.h"

namespace sluice {

struct SloTerms {
  std::optional<absl::Duration> first_token;  // from the whole request at the router
  std::optional<absl::Duration> per_token;    // behind the first

  bool asked() const { return first_token.has_value() || per_token.has_value(); }
};

struct SloVerdict {
  enum Kind { kTake, kFirstTokenTooLate, kTokensTooSlow };
  Kind kind = kTake;
  int level = 0;        // kTake: of `work`
  absl::Status status;  // else, with reason and RetryInfo
};

// spent: since the whole request was here. work: TokensComputed as asked, then with ever lower budgets where
// the request allows that; it is never empty. prefill, decode: ready workers, with their load. A worker's
// rate is that of its last prompts, with the gates they had: this prompt is taken for one of them, so only
// what a lower budget saves of it counts.
SloVerdict JudgeSlo(const SloTerms& terms, absl::Duration spent, const RouteQuery& query,
                    absl::Span<const double> work, absl::Span<const Candidate> prefill,
                    absl::Span<const Candidate> decode);

// Of a prompt of so many tokens on a model of so many layers: the tokens that pass through all layers and
// cost as much, as propagation leaves some out of later ones.
double TokensComputed(const ResolvedGates& gates, int prompt_tokens, int layers);

}  // namespace sluice
