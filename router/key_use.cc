#include "router/key_use.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr absl::Duration kRetryInFlight = absl::Seconds(1);

absl::Status OverLimit(const std::string& key_id, const char* what, int64_t limit, absl::Duration wait) {
  const std::string subject = absl::StrCat(what, " of key ", key_id);
  const std::string text = absl::StrCat(subject, ": at its limit of ", limit);
  return WithRetryAfter(
      WithReason(WithQuotaFailure(absl::ResourceExhaustedError(text), subject, text), "RATE_LIMIT"), wait);
}

// Until a bucket that lacks so much is full enough.
absl::Duration TimeFor(double lacking, int64_t per_minute) {
  return absl::Ceil(absl::Minutes(lacking / static_cast<double>(per_minute)), absl::Milliseconds(1));
}

}  // namespace

void KeyUse::Bucket::Refill(int64_t per_minute, absl::Time now) {
  const double most = static_cast<double>(per_minute);
  // What was spent before there was a limit is not owed.
  level = at == absl::InfinitePast() ? most : std::min(most, level + most * absl::ToDoubleMinutes(now - at));
  at = now;
}

absl::Status KeyUse::Begin(const KeyLimits& limits, absl::Time now) {
  MutexLock lock(&mu_);
  if (limits.in_flight > 0 && in_flight_ >= limits.in_flight)
    return OverLimit(key_id_, "requests in flight", limits.in_flight, kRetryInFlight);
  if (limits.tokens_per_minute > 0) {
    tokens_.Refill(limits.tokens_per_minute, now);
    if (tokens_.level <= 0) {
      return OverLimit(key_id_, "tokens per minute", limits.tokens_per_minute,
                       TimeFor(1 - tokens_.level, limits.tokens_per_minute));
    }
  } else {
    tokens_ = {};
  }
  if (limits.requests_per_minute > 0) {
    requests_.Refill(limits.requests_per_minute, now);
    if (requests_.level < 1) {
      return OverLimit(key_id_, "requests per minute", limits.requests_per_minute,
                       TimeFor(1 - requests_.level, limits.requests_per_minute));
    }
    requests_.level -= 1;
  } else {
    requests_ = {};
  }
  ++in_flight_;
  return absl::OkStatus();
}

void KeyUse::End() {
  MutexLock lock(&mu_);
  --in_flight_;
}

void KeyUse::SpendTokens(int64_t tokens) {
  MutexLock lock(&mu_);
  tokens_.level -= static_cast<double>(tokens);
}

}  // namespace sluice
