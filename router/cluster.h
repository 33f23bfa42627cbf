// Role: the cluster view for many threads, with the route policy and the clock it is asked under. Tells its
// owner when a worker is lost or the set of ready ones may have changed.
// Threads: any; one lock. The two callbacks run on the caller's thread, outside the lock.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "router/cluster_view.h"
#include "router/request_flow.h"

namespace sluice {

class Cluster final : public WorkerPicker {
 public:
  struct Listener {
    std::function<void(const std::string& incarnation)> lost;
    std::function<void()> changed;
  };
  Cluster(const internal::v1::ModelIdentity& own, const ClusterOptions& options, const RoutePolicy* policy,
          const Clock* clock);

  // Before the first worker comes.
  void SetListener(Listener listener) { listener_ = std::move(listener); }

  // As ClusterView's.
  absl::Status Register(const internal::v1::WorkerReport& report);
  absl::Status Renew(const std::string& incarnation, const internal::v1::WorkerLoad& load);
  void Leave(const std::string& incarnation);
  void Expire();

  absl::StatusOr<std::string> Order(absl::string_view worker, bool drain);
  WorkerOrders OrdersFor(const std::string& incarnation) const;
  DrainState Draining(const std::string& incarnation) const;

  absl::StatusOr<WorkerRef> Pick(WorkerRole role, const RouteQuery& query,
                                 const std::set<std::string>& excluded) override;
  bool Usable(const WorkerRef& worker) override;
  void Avoid(const WorkerRef& worker, absl::Duration how_long) override;
  void AddLoad(const std::string& incarnation, int requests, int64_t tokens);
  void TellSpeed(const std::string& incarnation, int tokens, absl::Duration took);
  void RememberPrefix(absl::Span<const uint64_t> prefix, const std::string& incarnation);
  void ForgetPrefixes(const std::string& incarnation);
  std::vector<Candidate> Candidates(WorkerRole role, const RouteQuery& query) const;

  std::vector<WorkerInfo> List() const;
  int Count(WorkerRole role, WorkerState state) const;
  bool Ready() const;  // at least one ready worker of each role
  absl::Duration lease() const { return options_.lease; }

 private:
  const ClusterOptions options_;
  const RoutePolicy* const policy_;
  const Clock* const clock_;
  Listener listener_;
  mutable Mutex mu_;
  ClusterView view_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
