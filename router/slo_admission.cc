#include "router/slo_admission.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/rpc/status_codec.h"
#include "router/policies/expected_time.h"

namespace sluice {
namespace {

constexpr absl::Duration kLeastRetry = absl::Milliseconds(100);
constexpr absl::Duration kMostRetry = absl::Minutes(1);

absl::Status Unreachable(std::string text, absl::Duration retry_after) {
  return WithRetryAfter(WithReason(absl::ResourceExhaustedError(text), "SLO_UNREACHABLE"),
                        std::clamp(retry_after, kLeastRetry, kMostRetry));
}

std::string Milliseconds(absl::Duration duration) {
  return absl::StrFormat("%.0f ms", absl::ToDoubleMilliseconds(duration));
}

bool RatesAreKnown(absl::Span<const Candidate> prefill) {
  return std::any_of(prefill.begin(), prefill.end(),
                     [](const Candidate& c) { return c.tokens_per_second > 0; });
}

absl::Duration FirstTokenIn(int64_t tokens, absl::Span<const Candidate> prefill) {
  RouteQuery query;
  query.tokens = tokens;
  const std::vector<double> seconds = PrefillSeconds(query, prefill, true);
  return absl::Seconds(*std::min_element(seconds.begin(), seconds.end()));
}

}  // namespace

SloVerdict JudgeSlo(const SloTerms& terms, absl::Duration spent, const RouteQuery& query,
                    absl::Span<const double> work, absl::Span<const Candidate> prefill,
                    absl::Span<const Candidate> decode) {
  SloVerdict verdict;
  if (terms.per_token.has_value() && !decode.empty()) {
    double best = std::numeric_limits<double>::infinity();
    for (const Candidate& worker : decode) best = std::min(best, worker.seconds_per_token);
    const absl::Duration expected = absl::Seconds(best);
    if (expected > *terms.per_token) {
      verdict.kind = SloVerdict::kTokensTooSlow;
      verdict.status =
          Unreachable(absl::StrCat("slo.tpot_ms: a token takes ", Milliseconds(expected),
                                   " on the fastest decode worker, above ", Milliseconds(*terms.per_token),
                                   "; try again later, or leave it out"),
                      absl::Seconds(1));
      return verdict;
    }
  }
  if (!terms.first_token.has_value() || !RatesAreKnown(prefill)) return verdict;
  absl::Duration expected;
  for (size_t level = 0; level < work.size(); ++level) {
    const double share = work[level] / work[0];
    expected = spent + FirstTokenIn(static_cast<int64_t>(static_cast<double>(query.tokens) * share), prefill);
    if (expected > *terms.first_token) continue;
    verdict.level = static_cast<int>(level);
    return verdict;
  }
  verdict.kind = SloVerdict::kFirstTokenTooLate;
  verdict.status = Unreachable(
      absl::StrCat("slo.ttft_ms: the first token would come after ", Milliseconds(expected), ", ",
                   Milliseconds(expected - FirstTokenIn(0, prefill)), " of them for this prompt, above ",
                   Milliseconds(*terms.first_token), "; try again later, send less, or leave it out"),
      expected - *terms.first_token);
  return verdict;
}

double TokensComputed(const ResolvedGates& gates, int prompt_tokens, int layers) {
  const double below = static_cast<double>(gates.propagation.layer + 1) / layers;
  const double rows = std::min(gates.propagation.rows, prompt_tokens);
  switch (gates.propagation.kind) {
    case PropagationKind::kNone:
      break;
    case PropagationKind::kTsp:
      return prompt_tokens * below + rows * (1 - below);
    case PropagationKind::kRerun:
      return prompt_tokens * below + rows;
  }
  return prompt_tokens;
}

}  // namespace sluice
