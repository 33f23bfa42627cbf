#include "router/cluster.h"

namespace sluice {

Cluster::Cluster(const internal::v1::ModelIdentity& own, const ClusterOptions& options,
                 const RoutePolicy* policy, const Clock* clock)
    : options_(options), policy_(policy), clock_(clock), view_(own, options) {}

absl::Status Cluster::Register(const internal::v1::WorkerReport& report) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = view_.Register(report, clock_->Now());
  }
  if (status.ok()) listener_.changed();
  return status;
}

absl::Status Cluster::Renew(const std::string& incarnation, const internal::v1::WorkerLoad& load) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = view_.Renew(incarnation, load, clock_->Now());
  }
  listener_.changed();
  return status;
}

void Cluster::Leave(const std::string& incarnation) {
  {
    MutexLock lock(&mu_);
    if (!view_.Leave(incarnation, clock_->Now())) return;
  }
  listener_.changed();
}

void Cluster::Expire() {
  std::vector<std::string> lost;
  {
    MutexLock lock(&mu_);
    lost = view_.Expire(clock_->Now());
  }
  for (const std::string& incarnation : lost) listener_.lost(incarnation);
  if (!lost.empty()) listener_.changed();
}

absl::StatusOr<std::string> Cluster::Order(absl::string_view worker, bool drain) {
  absl::StatusOr<std::string> incarnation;
  {
    MutexLock lock(&mu_);
    incarnation = view_.Order(worker, drain);
  }
  if (incarnation.ok()) listener_.changed();
  return incarnation;
}

WorkerOrders Cluster::OrdersFor(const std::string& incarnation) const {
  MutexLock lock(&mu_);
  return view_.OrdersFor(incarnation);
}

DrainState Cluster::Draining(const std::string& incarnation) const {
  MutexLock lock(&mu_);
  return view_.Draining(incarnation);
}

absl::StatusOr<WorkerRef> Cluster::Pick(WorkerRole role, const RouteQuery& query,
                                        const std::set<std::string>& excluded) {
  MutexLock lock(&mu_);
  return view_.Pick(role, *policy_, query, excluded, clock_->Now());
}

bool Cluster::Usable(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  return view_.Usable(worker, clock_->Now());
}

void Cluster::Avoid(const WorkerRef& worker, absl::Duration how_long) {
  MutexLock lock(&mu_);
  view_.Avoid(worker.incarnation, clock_->Now() + how_long);
}

void Cluster::AddLoad(const std::string& incarnation, int requests, int64_t tokens) {
  MutexLock lock(&mu_);
  view_.AddLoad(incarnation, requests, tokens);
}

void Cluster::TellSpeed(const std::string& incarnation, int tokens, absl::Duration took) {
  MutexLock lock(&mu_);
  view_.TellSpeed(incarnation, tokens, took);
}

void Cluster::RememberPrefix(absl::Span<const uint64_t> prefix, const std::string& incarnation) {
  MutexLock lock(&mu_);
  view_.RememberPrefix(prefix, incarnation);
}

void Cluster::ForgetPrefixes(const std::string& incarnation) {
  MutexLock lock(&mu_);
  view_.ForgetPrefixes(incarnation);
}

std::vector<Candidate> Cluster::Candidates(WorkerRole role, const RouteQuery& query) const {
  MutexLock lock(&mu_);
  return view_.Candidates(role, query, {}, clock_->Now());
}

std::vector<WorkerInfo> Cluster::List() const {
  MutexLock lock(&mu_);
  return view_.List(clock_->Now());
}

int Cluster::Count(WorkerRole role, WorkerState state) const {
  MutexLock lock(&mu_);
  return view_.Count(role, state);
}

bool Cluster::Ready() const {
  return Count(WorkerRole::kPrefill, WorkerState::kReady) > 0 &&
         Count(WorkerRole::kDecode, WorkerState::kReady) > 0;
}

}  // namespace sluice
