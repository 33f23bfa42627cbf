// Role: what one API key has used of its limits: two buckets that refill over a minute and the requests in
// flight. Why buckets: a minute's worth may come at once, and a caller who is refused hears when it will not
// be. Tokens are known after they are used: a caller goes below zero by what is under way, and waits that
// out. Threads: any; one lock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/auth/api_keys.h"
#include "common/base/mutex.h"

namespace sluice {

class KeyUse {
 public:
  explicit KeyUse(std::string key_id) : key_id_(std::move(key_id)) {}

  // One request more. ResourceExhausted / RATE_LIMIT with RetryInfo and QuotaFailure: not now.
  absl::Status Begin(const KeyLimits& limits, absl::Time now);
  void End();
  void SpendTokens(int64_t tokens);

 private:
  struct Bucket {
    double level = 0;
    absl::Time at = absl::InfinitePast();  // of the level
    void Refill(int64_t per_minute, absl::Time now);
  };
  const std::string key_id_;
  Mutex mu_;
  Bucket requests_ ABSL_GUARDED_BY(mu_);
  Bucket tokens_ ABSL_GUARDED_BY(mu_);
  int64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice
