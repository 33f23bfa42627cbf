// Role: keeps a worker registered with one router: one stream is one lease. Reports identity first, then load
// every third of the lease, or every 250 ms while it drains; tries again for ever, first after 50 ms, then
// after pauses that double up to 1 s. Threads: one of its own ("registration"); Stop() and the destructor
// join it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/rpc/tls.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

class WorkerRegistration {
 public:
  using LoadFn = std::function<internal::v1::WorkerLoad()>;  // called on the registration thread
  using HeardFn = std::function<void(const internal::v1::RegistryReply&)>;  // called on gRPC's, until Stop

  // identity: every field but load. heard: of each reply of the router; may be null. tls: null for none.
  WorkerRegistration(std::string router_address, internal::v1::WorkerReport identity, LoadFn load,
                     HeardFn heard = nullptr, std::shared_ptr<Tls> tls = nullptr);
  ~WorkerRegistration();

  // The load has changed in a way that cannot wait.
  void ReportNow();

  // The router has answered, and its stream goes on.
  bool connected() const { return connected_; }

  // Ends the stream: the router forgets this worker at once. Idempotent.
  void Stop();

 private:
  void Run();
  // Until then, a change of the stream, or ReportNow, which sets *wanted. False: Stop was called.
  bool Wait(absl::Time until, bool* wanted);

  const std::string router_address_;
  const internal::v1::WorkerReport identity_;
  const LoadFn load_;
  const HeardFn heard_;
  const std::shared_ptr<Tls> tls_;
  Mutex mu_;
  CondVar wake_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool stream_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool report_wanted_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> connected_{false};
  NamedThread thread_;
};

}  // namespace sluice
