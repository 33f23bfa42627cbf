// Role: sends a load and waits for its end: closed loop (so many users, each with one request at a time) or
// open loop (arrivals at times of their own, whatever the servers do). Threads: the caller's, which decides
// everything; the target's tell it what happened through a queue. No thread per request or user.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "client/load_prompts.h"
#include "client/load_record.h"
#include "client/load_schedule.h"
#include "client/load_target.h"

namespace sluice {

struct LoadShape {
  // Closed loop: users. Open loop: a bound; who arrives above it waits, and the wait counts.
  int concurrency = 1;
  Arrivals arrivals;                       // of dialogues; null: closed loop
  std::optional<int> requests;             // every turn is one
  std::optional<absl::Duration> duration;  // nothing arrives after it; what is under way ends
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of their end
  absl::Duration duration;             // from the start to the last end
  int max_in_flight = 0;
  bool interrupted = false;  // by Ctrl-C: requests under way were cancelled
};

struct LoadHooks {
  std::function<Dialogue()> next;
  // share of the load that is done, [0, 1]; called about ten times a second
  std::function<void(double share, int ended, int failed)> progress;
};

// A dialogue of several turns is a conversation that is opened and closed.
LoadResult RunLoad(const LoadTarget& target, const LoadShape& shape, const LoadSettings& settings,
                   const LoadHooks& hooks);

}  // namespace sluice
