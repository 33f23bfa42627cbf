#include "common/rpc/worker_registration.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kFirstLease = absl::Seconds(10);
constexpr absl::Duration kReconnectPause = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(100);

// One life of the stream. The gRPC thread writes its fields under the mutex; the registration thread polls
// them.
class Stream final : public grpc::ClientBidiReactor<internal::v1::WorkerReport, internal::v1::RegistryReply> {
 public:
  Stream(internal::v1::WorkerRegistry::Stub* stub, internal::v1::WorkerReport first)
      : report_(std::move(first)) {
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

  void Close() {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      closed_ = true;
    }
    context_.TryCancel();
    RemoveHold();
  }

  bool finished() const {
    MutexLock lock(&mu_);
    return finished_;
  }
  bool failed() const {
    MutexLock lock(&mu_);
    return broken_;
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
      if (!ok) {
        broken_ = true;
        return;
      }
      if (reply_.lease_seconds() > 0) lease_ = absl::Seconds(reply_.lease_seconds());
    }
    StartRead(&reply_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) broken_ = true;
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mu_);
    error_ = status.error_message();
    finished_ = true;
  }

 private:
  grpc::ClientContext context_;
  internal::v1::WorkerReport report_;
  internal::v1::RegistryReply reply_;
  mutable Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration lease_ ABSL_GUARDED_BY(mu_) = kFirstLease;
  std::string error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

WorkerRegistration::WorkerRegistration(std::string router_address, internal::v1::WorkerReport identity,
                                       LoadFn load)
    : router_address_(std::move(router_address)),
      identity_(std::move(identity)),
      load_(std::move(load)),
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

void WorkerRegistration::Run() {
  auto channel = grpc::CreateChannel(router_address_, grpc::InsecureChannelCredentials());
  auto stub = internal::v1::WorkerRegistry::NewStub(channel);
  auto stopped_after = [this](absl::Duration pause) {
    MutexLock lock(&mu_);
    if (!stopped_) wake_.WaitFor(&mu_, pause);
    return stopped_;
  };

  std::string last_error;
  while (!stopped_after(absl::ZeroDuration())) {
    internal::v1::WorkerReport first = identity_;
    *first.mutable_load() = load_();
    Stream stream(stub.get(), std::move(first));
    absl::Duration since_report;
    bool stopping = false;
    while (!stopping && !stream.failed()) {
      stopping = stopped_after(kPoll);
      since_report += kPoll;
      if (since_report >= stream.lease() / 3) {
        stream.Report(load_());
        since_report = absl::ZeroDuration();
        last_error.clear();
      }
    }
    stream.Close();
    while (!stream.finished()) stopped_after(absl::Milliseconds(5));
    if (stopping) return;
    if (stream.error() != last_error) {
      last_error = stream.error();
      spdlog::warn("registration lost router={} error=\"{}\"", router_address_, last_error);
    }
    stopped_after(kReconnectPause);
  }
}

}  // namespace sluice
