// Role: a worker and its routers: one registration with each, one load for all, and the drain that one of
// them or a stop signal orders. Why: whoever orders a drain, every router has to hear of it. Threads: any;
// each registration has one of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/worker_registration.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

class RouterLinks {
 public:
  // Of ready decode workers that any router knows. Called on gRPC's threads, until Stop.
  using DecodesFn = std::function<void(std::vector<std::string> addresses)>;

  // identity: every field but load. load: every field but draining; called on any thread. decodes: may be
  // null.
  RouterLinks(const std::vector<std::string>& routers, const internal::v1::WorkerReport& identity,
              WorkerRegistration::LoadFn load, DecodesFn decodes = nullptr,
              const std::shared_ptr<Tls>& tls = nullptr);
  ~RouterLinks();

  bool draining() const { return draining_; }

  // From now on no router sends new requests. Returns when they all know and none is left, or after
  // `at_most`; how many are left.
  int Drain(absl::Duration at_most);

  // Ends the registrations: the routers forget this worker at once.
  void Stop();

 private:
  struct Link {
    std::vector<std::string> decodes;  // as this router said last
    bool knows = false;                // this router sends no new requests
    std::unique_ptr<WorkerRegistration> registration;
  };
  void Heard(size_t router, const internal::v1::RegistryReply& reply);
  void SetDraining(bool on) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllKnow() const;
  int Left() const;

  const WorkerRegistration::LoadFn load_;
  const DecodesFn decodes_;
  std::atomic<bool> draining_{false};
  mutable Mutex mu_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // an order to undrain comes too late
  std::vector<Link> links_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
