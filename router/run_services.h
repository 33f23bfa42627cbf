// Role: what every request in flight shares. Owned by Router, which outlives all requests.
// Threads: each member says its own; the small classes here are for any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/router_metrics.h"
#include "common/session/session_store.h"
#include "router/cluster.h"
#include "router/served_model.h"
#include "router/timers.h"
#include "router/work_pool.h"
#include "router/worker_channels.h"

namespace sluice {

class RequestRun;

// Sessions with a turn in progress: one turn at a time.
class BusySessions {
 public:
  bool Enter(const std::string& id) {
    MutexLock lock(&mu_);
    return ids_.insert(id).second;
  }
  void Leave(const std::string& id) {
    MutexLock lock(&mu_);
    ids_.erase(id);
  }
  size_t size() const {
    MutexLock lock(&mu_);
    return ids_.size();
  }

 private:
  mutable Mutex mu_;
  std::set<std::string> ids_ ABSL_GUARDED_BY(mu_);
};

// Requests in flight, up to a bound, and how many RequestRuns exist: some outlive their request until the
// last call to a worker has ended.
class RunTable {
 public:
  explicit RunTable(int capacity) : capacity_(capacity) {}
  // False: full.
  bool Add(const std::shared_ptr<RequestRun>& run);
  void Remove(RequestRun* run);
  std::vector<std::shared_ptr<RequestRun>> All() const;
  int size() const;
  int capacity() const { return capacity_; }
  std::atomic<int>& alive() { return alive_; }

 private:
  const int capacity_;
  std::atomic<int> alive_{0};
  mutable Mutex mu_;
  std::map<RequestRun*, std::weak_ptr<RequestRun>> runs_ ABSL_GUARDED_BY(mu_);
};

struct RouterStats {
  std::atomic<int64_t> requests{0}, failed{0}, prompt_tokens{0}, cached_tokens{0}, completion_tokens{0};
};

struct RunOptions {
  FlowOptions flow;
  absl::Duration default_timeout = absl::Minutes(10);
  absl::Duration slow_client_timeout = absl::Seconds(30);
  size_t max_backlog_bytes = 256 << 10;  // of one reply; then its decode is paused
};

struct RunServices {
  const ServedModel* model;
  const Clock* clock;
  Cluster* cluster;
  WorkerChannels* channels;
  SessionStore* store;
  BusySessions* busy_sessions;
  RunTable* runs;
  WorkPool* pool;
  Timers* timers;
  RouterMetrics* metrics;
  RouterStats* stats;
  std::atomic<bool>* draining;
  RunOptions options;
};

}  // namespace sluice
