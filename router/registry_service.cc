#include "router/registry_service.h"

#include <spdlog/spdlog.h>

#include <string>

#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

// Reads reports one by one; each is answered with the lease, and prefill hears of decode workers. gRPC calls
// one method at a time.
class Lease final : public grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply> {
 public:
  explicit Lease(Cluster* cluster) : cluster_(cluster) {
    reply_.set_lease_seconds(absl::ToDoubleSeconds(cluster->lease()));
    StartRead(&report_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    absl::Status status;
    if (incarnation_.empty()) {
      status = cluster_->Register(report_);
      if (status.ok()) incarnation_ = report_.incarnation();
      is_prefill_ = report_.role() == RoleName(WorkerRole::kPrefill);
      spdlog::log(status.ok() ? spdlog::level::info : spdlog::level::warn,
                  "worker name={} role={} address={} incarnation={} {}", report_.name(), report_.role(),
                  report_.address(), report_.incarnation(),
                  status.ok() ? "registered" : "refused error=" + std::string(status.message()));
    } else {
      status = cluster_->Renew(incarnation_, report_.load());
    }
    if (!status.ok()) return End(ToGrpcStatus(status));
    if (is_prefill_) NameDecodeWorkers();
    StartWrite(&reply_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    report_.Clear();
    StartRead(&report_);
  }
  void OnDone() override { delete this; }

 private:
  void NameDecodeWorkers() {
    reply_.clear_decode_addresses();
    for (const WorkerInfo& worker : cluster_->List())
      if (worker.role == WorkerRole::kDecode && worker.state == WorkerState::kReady)
        reply_.add_decode_addresses(worker.ref.address);
  }
  void End(const grpc::Status& status) {
    if (!incarnation_.empty()) {
      cluster_->Leave(incarnation_);
      spdlog::info("worker incarnation={} left", incarnation_);
    }
    Finish(status);
  }

  Cluster* const cluster_;
  internal::v1::WorkerReport report_;
  internal::v1::RegistryReply reply_;
  std::string incarnation_;  // empty before it is registered
  bool is_prefill_ = false;
};

}  // namespace

grpc::ServerBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply>* RegistryService::Register(
    grpc::CallbackServerContext* context) {
  return new Lease(cluster_);
}

}  // namespace sluice
