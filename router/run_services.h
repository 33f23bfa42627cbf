// Role: what every request in flight shares. Owned by Router, which outlives all requests.
// Threads: each member says its own; the small classes here are for any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/router_metrics.h"
#include "common/session/session_store.h"
#include "router/authenticator.h"
#include "router/cluster.h"
#include "router/defaults.h"
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

// Holds a session as a turn does, while it lives.
class BusySession {
 public:
  // Nullopt: a turn of it is running.
  static std::optional<BusySession> Enter(BusySessions* sessions, const std::string& id) {
    if (!sessions->Enter(id)) return std::nullopt;
    return BusySession(sessions, id);
  }
  BusySession(BusySession&& other) noexcept
      : sessions_(std::exchange(other.sessions_, nullptr)), id_(std::move(other.id_)) {}
  BusySession& operator=(BusySession&&) = delete;
  ~BusySession() {
    if (sessions_ != nullptr) sessions_->Leave(id_);
  }

 private:
  BusySession(BusySessions* sessions, const std::string& id) : sessions_(sessions), id_(id) {}
  BusySessions* sessions_;
  std::string id_;
};

// Requests in flight, up to a bound on the answers they want, and how many RequestRuns and other calls to
// workers exist: some outlive their request until the last call to a worker has ended.
class RunTable {
 public:
  explicit RunTable(int capacity) : capacity_(capacity) {}
  // For one answer. ResourceExhausted with RetryInfo: full.
  absl::Status Add(const std::shared_ptr<RequestRun>& run);
  // All the answers of one that was added, or none more. InvalidArgument: it could never be.
  absl::Status Widen(RequestRun* run, int choices);
  void Remove(RequestRun* run);
  // The id by which operators know it.
  void Name(RequestRun* run, const std::string& request_id);
  std::vector<std::shared_ptr<RequestRun>> All() const;
  std::vector<std::shared_ptr<RequestRun>> Named(const std::string& request_id) const;
  int size() const;
  int capacity() const { return capacity_; }
  std::atomic<int>& alive() { return *alive_; }
  // For a call that may outlive the router by a moment.
  std::shared_ptr<std::atomic<int>> shared_alive() const { return alive_; }

 private:
  const int capacity_;
  const std::shared_ptr<std::atomic<int>> alive_ = std::make_shared<std::atomic<int>>(0);
  mutable Mutex mu_;
  struct Entry {
    std::weak_ptr<RequestRun> run;
    std::string request_id;  // empty before it is planned
    int choices = 1;
  };
  int taken_ ABSL_GUARDED_BY(mu_) = 0;  // choices of all runs
  std::map<RequestRun*, Entry> runs_ ABSL_GUARDED_BY(mu_);
};

// Of requests, and of calls that are bounded as they are.
absl::Status QueueFull(int capacity);

struct RouterStats {
  std::atomic<int64_t> requests{0}, failed{0}, prompt_tokens{0}, cached_tokens{0}, completion_tokens{0};
};

struct RunOptions {
  FlowOptions flow;
  absl::Duration slow_client_timeout = absl::Seconds(30);
  size_t max_backlog_bytes = 256 << 10;                   // of one reply; then its decode is paused
  absl::Duration session_ttl = absl::InfiniteDuration();  // without a commit; then a session is deleted
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
  std::atomic<int>* text_calls;  // under way
  Defaults* defaults;
  Authenticator* authenticator;
  RunOptions options;
};

}  // namespace sluice
