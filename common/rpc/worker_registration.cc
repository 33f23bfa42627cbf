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
constexpr absl::Duration kDrainReport = absl::Milliseconds(250);  // an operator watches it

// One life of the stream. gRPC's threads write its fields under the mutex; the registration thread reads
// them.
class Stream final : public grpc::ClientBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply> {
 public:
  // changed: called when failed(), registered() or lease() has changed or a report is written, under the
  // stream's mutex.
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

  // False: the previous report is still on its way.
  bool Report(const internal::v1::WorkerLoad& load) {
    MutexLock lock(&mu_);
    if (writing_ || closed_ || finished_) return false;
    report_.Clear();
    *report_.mutable_load() = load;
    writing_ = true;
    StartWrite(&report_);
    return true;
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
    heard_(reply_);
    StartRead(&reply_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) return Break();
    changed_();
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
                                       LoadFn load, HeardFn heard, std::shared_ptr<Tls> tls)
    : router_address_(std::move(router_address)),
      identity_(std::move(identity)),
      load_(std::move(load)),
      heard_(std::move(heard)),
      tls_(std::move(tls)),
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

void WorkerRegistration::ReportNow() {
  {
    MutexLock lock(&mu_);
    report_wanted_ = true;
  }
  wake_.NotifyAll();
}

bool WorkerRegistration::Wait(absl::Time until, bool* wanted) {
  MutexLock lock(&mu_);
  while (!stopped_ && !stream_changed_ && !report_wanted_ && absl::Now() < until) {
    wake_.WaitFor(&mu_, until - absl::Now());
  }
  *wanted = *wanted || report_wanted_;
  report_wanted_ = stream_changed_ = false;
  return !stopped_;
}

void WorkerRegistration::Run() {
  absl::Duration pause = kFirstPause;
  std::string last_error;
  bool going_on = true;
  while (going_on) {
    // A channel of its own for each attempt: gRPC's backoff would add to our pause.
    auto stub = internal::v1::WorkerRegistry::NewStub(OpenChannel(router_address_, tls_.get()));
    internal::v1::WorkerReport first = identity_;
    *first.mutable_load() = load_();
    const auto changed = [this] {
      MutexLock lock(&mu_);
      stream_changed_ = true;
      wake_.NotifyAll();
    };
    absl::Duration longest = first.load().draining() ? kDrainReport : absl::InfiniteDuration();
    const auto heard = [this](const internal::v1::RegistryReply& reply) {
      connected_ = true;
      if (heard_ != nullptr) heard_(reply);
    };
    Stream stream(stub.get(), std::move(first), changed, heard);
    absl::Time reported = absl::Now();
    bool wanted = false;
    while (going_on && !stream.failed()) {
      const absl::Time next = reported + std::min(stream.lease() / 3, longest);
      going_on = Wait(next, &wanted);
      if (!wanted && absl::Now() < next) continue;
      const internal::v1::WorkerLoad load = load_();
      wanted = !stream.Report(load);  // then when the one before is written
      longest = load.draining() ? kDrainReport : absl::InfiniteDuration();
      reported = absl::Now();
    }
    stream.Close();
    connected_ = false;
    if (!going_on) return;
    if (stream.registered()) pause = kFirstPause;
    if (stream.registered() || stream.error() != last_error) {
      last_error = stream.error();
      spdlog::warn("registration {} router={} error=\"{}\"", stream.registered() ? "lost" : "waits",
                   router_address_, last_error);
    }
    for (absl::Time next = absl::Now() + pause; going_on && absl::Now() < next;)
      going_on = Wait(next, &wanted);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace sluice
