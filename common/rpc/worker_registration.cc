#include "common/rpc/worker_registration.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kFirstLease = absl::Seconds(10);
// Between attempts, doubled while they fail: at start-up the router is there within moments.
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// One life of the stream. gRPC's threads write its fields under the mutex; the registration thread reads
// them.
class Stream final : public grpc::ClientBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply> {
 public:
  // changed: called when failed(), registered() or lease() has changed, under the stream's mutex.
  Stream(internal::v1::WorkerRegistry::Stub* stub, internal::v1::WorkerReport first,
         std::function<void()> changed, WorkerRegistration::HeardFn heard)
      : changed_(std::move(changed)), heard_(std::move(heard)), report_(std::move(first)) {
    stub->async()->Register(&context_, this);
    AddHold();  // the registration thread writes until Close()
    StartRead(&reply_);
    writing_ = true;
    StartWrite(&report_);
    StartCall();
  }

  // Skipped while the previous report is still on its way.
  void Report(const internal::v1::WorkerLoad& load) {
    MutexLock lock(&mu_);
    if (writing_ || closed_ || finished_) return;
    report_.Clear();
    *report_.mutable_load() = load;
    writing_ = true;
    StartWrite(&report_);
  }

  // Returns when gRPC has let go of the stream. Once.
  void Close() {
    {
      MutexLock lock(&mu_);
      closed_ = true;
    }
    context_.TryCancel();
    RemoveHold();
    MutexLock lock(&mu_);
    while (!finished_) done_.WaitFor(&mu_, absl::Seconds(1));
  }

  bool failed() const {
    MutexLock lock(&mu_);
    return broken_;
  }
  // The router has answered.
  bool registered() const {
    MutexLock lock(&mu_);
    return registered_;
  }
  absl::Duration lease() const {
    MutexLock lock(&mu_);
    return lease_;
  }
  std::string error() const {
    MutexLock lock(&mu_);
    return error_;
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      if (!ok) return Break();
      registered_ = true;
      if (reply_.lease_seconds() > 0) lease_ = absl::Seconds(reply_.lease_seconds());
      changed_();
    }
    if (heard_ != nullptr) heard_(reply_);
    StartRead(&reply_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) Break();
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mu_);
    error_ = status.error_message();
    finished_ = true;
    done_.NotifyAll();
  }

 private:
  void Break() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    broken_ = true;
    changed_();
  }

  const std::function<void()> changed_;
  const WorkerRegistration::HeardFn heard_;
  grpc::ClientContext context_;
  internal::v1::WorkerReport report_;
  internal::v1::RegistryReply reply_;
  mutable Mutex mu_;
  CondVar done_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration lease_ ABSL_GUARDED_BY(mu_) = kFirstLease;
  std::string error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

WorkerRegistration::WorkerRegistration(std::string router_address, internal::v1::WorkerReport identity,
                                       LoadFn load, HeardFn heard)
    : router_address_(std::move(router_address)),
      identity_(std::move(identity)),
      load_(std::move(load)),
      heard_(std::move(heard)),
      thread_("registration", [this] { Run(); }) {}

WorkerRegistration::~WorkerRegistration() { Stop(); }

void WorkerRegistration::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

bool WorkerRegistration::Wait(absl::Time until) {
  MutexLock lock(&mu_);
  while (!stopped_ && !stream_changed_ && absl::Now() < until) wake_.WaitFor(&mu_, until - absl::Now());
  stream_changed_ = false;
  return !stopped_;
}

void WorkerRegistration::Run() {
  absl::Duration pause = kFirstPause;
  std::string last_error;
  bool going_on = true;
  while (going_on) {
    // A channel of its own for each attempt: gRPC's backoff would add to our pause.
    auto stub = internal::v1::WorkerRegistry::NewStub(
        grpc::CreateChannel(router_address_, grpc::InsecureChannelCredentials()));
    internal::v1::WorkerReport first = identity_;
    *first.mutable_load() = load_();
    const auto changed = [this] {
      MutexLock lock(&mu_);
      stream_changed_ = true;
      wake_.NotifyAll();
    };
    Stream stream(stub.get(), std::move(first), changed, heard_);
    absl::Time reported = absl::Now();
    while (going_on && !stream.failed()) {
      going_on = Wait(reported + stream.lease() / 3);
      if (absl::Now() < reported + stream.lease() / 3) continue;
      stream.Report(load_());
      reported = absl::Now();
    }
    stream.Close();
    if (!going_on) return;
    if (stream.registered()) pause = kFirstPause;
    if (stream.registered() || stream.error() != last_error) {
      last_error = stream.error();
      spdlog::warn("registration {} router={} error=\"{}\"", stream.registered() ? "lost" : "waits",
                   router_address_, last_error);
    }
    for (absl::Time next = absl::Now() + pause; going_on && absl::Now() < next;) going_on = Wait(next);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace sluice
