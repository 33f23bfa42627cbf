#include "router/registry_service.h"

#include <spdlog/spdlog.h>

#include <string>

#include "common/rpc/status_codec.h"

namespace sluice {

// Reads reports one by one; each is answered with the lease and the worker's orders, and prefill hears of
// decode workers. Where a reply is still on its way, the next one answers for several.
class RegistryService::Lease final
    : public grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply> {
 public:
  explicit Lease(RegistryService* owner) : owner_(owner) { StartRead(&report_); }

  void Tell() {
    MutexLock lock(&mu_);
    owed_ = true;
    Write();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (absl::Status status = Hear(); !status.ok()) return End(ToGrpcStatus(status));
    MutexLock lock(&mu_);
    if (ended_) return;
    owed_ = true;
    Write();
    report_.Clear();
    StartRead(&report_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    MutexLock lock(&mu_);
    writing_ = false;
    Write();
  }
  void OnDone() override {
    if (!incarnation_.empty()) {
      MutexLock lock(&owner_->mu_);
      auto found = owner_->leases_.find(incarnation_);
      if (found != owner_->leases_.end() && found->second == this) owner_->leases_.erase(found);
    }
    delete this;
  }

 private:
  // The first report registers, the others renew.
  absl::Status Hear() {
    if (!incarnation_.empty()) return owner_->cluster_->Renew(incarnation_, report_.load());
    const absl::Status status = owner_->cluster_->Register(report_);
    spdlog::log(status.ok() ? spdlog::level::info : spdlog::level::warn,
                "worker name={} role={} address={} incarnation={} {}", report_.name(), report_.role(),
                report_.address(), report_.incarnation(),
                status.ok() ? "registered" : "refused error=" + std::string(status.message()));
    if (!status.ok()) return status;
    incarnation_ = report_.incarnation();
    is_prefill_ = report_.role() == RoleName(WorkerRole::kPrefill);
    MutexLock lock(&owner_->mu_);
    owner_->leases_[incarnation_] = this;
    return status;
  }
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!owed_ || writing_ || ended_) return;
    owed_ = false;
    writing_ = true;
    const WorkerOrders orders = owner_->cluster_->OrdersFor(incarnation_);
    reply_.Clear();
    reply_.set_lease_seconds(absl::ToDoubleSeconds(owner_->cluster_->lease()));
    reply_.set_draining(orders.draining);
    if (orders.drain.has_value()) {
      reply_.set_order(*orders.drain ? internal::v1::RegistryReply::DRAIN
                                     : internal::v1::RegistryReply::UNDRAIN);
    }
    if (is_prefill_) NameDecodeWorkers();
    StartWrite(&reply_);
  }
  void NameDecodeWorkers() {
    for (const WorkerInfo& worker : owner_->cluster_->List())
      if (worker.role == WorkerRole::kDecode && worker.state == WorkerState::kReady)
        reply_.add_decode_addresses(worker.ref.address);
  }
  void End(const grpc::Status& status) {
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      ended_ = true;
    }
    if (!incarnation_.empty()) {
      owner_->cluster_->Leave(incarnation_);
      spdlog::info("worker incarnation={} left", incarnation_);
    }
    Finish(status);
  }

  RegistryService* const owner_;
  internal::v1::WorkerReport report_;
  std::string incarnation_;  // empty before it is registered; then constant, as the next
  bool is_prefill_ = false;
  Mutex mu_;
  internal::v1::RegistryReply reply_ ABSL_GUARDED_BY(mu_);  // gRPC's while writing_
  bool owed_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply>* RegistryService::Register(
    grpc::CallbackServerContext* context) {
  return new Lease(this);
}

void RegistryService::Tell(const std::string& incarnation) {
  MutexLock lock(&mu_);
  auto found = leases_.find(incarnation);
  if (found != leases_.end()) found->second->Tell();
}

}  // namespace sluice
