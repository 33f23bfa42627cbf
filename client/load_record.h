// Role: what one request of a load looked like from outside. Threads: none of its own.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

struct RequestRecord {
  uint64_t dialogue = 0;  // turns of one session share it
  int turn = 0;           // 0-based
  // Since the run began. An open loop measures from the arrival, however late the request left: a queue in
  // front of a slow server is part of what its users wait for.
  absl::Duration arrival, sent, end;
  std::optional<absl::Duration> first_token, last_token;  // since the run began; unset: none came
  std::vector<absl::Duration> itl;  // between events with tokens; tokens of one event came together
  absl::Status status;
  bool interrupted = false;  // cancelled by us, not an error of the server
  v1::Done done;             // set where status is OK

  bool completed() const { return status.ok(); }
  std::optional<absl::Duration> ttft() const {
    return first_token.has_value() ? std::optional(*first_token - arrival) : std::nullopt;
  }
  absl::Duration e2el() const { return end - arrival; }
  // Time per output token after the first; unset for a single token.
  std::optional<absl::Duration> tpot() const {
    const int tokens = done.usage().completion_tokens();
    if (tokens < 2 || !first_token.has_value()) return std::nullopt;
    return (*last_token - *first_token) / (tokens - 1);
  }
};

}  // namespace sluice
