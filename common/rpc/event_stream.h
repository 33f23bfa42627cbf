// Role: a server's stream of events, written in order, that loops may hold longer than gRPC holds its
// reactor. Why: engine loops produce events at their own pace; the RPC may end before they do. Threads: any.
// A stream costs memory, never a thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/status_codec.h"

namespace sluice {

template <class Event>
class EventStream {
 public:
  // Opens the stream of one RPC; `reactor` goes to gRPC. on_cancel: the client went away or the deadline
  // passed.
  static std::shared_ptr<EventStream> Open(std::function<void()> on_cancel,
                                           grpc::ServerWriteReactor<Event>** reactor) {
    auto* opened = new Reactor(std::move(on_cancel));
    *reactor = opened;
    return opened->stream_;
  }

  void Push(Event event) {
    PushOrMerge(std::move(event), [](Event*) { return false; });
  }

  // merge(&last): folds the event into the last one that waits, or returns false.
  template <class Merge>
  void PushOrMerge(Event event, Merge merge) {
    MutexLock lock(&mu_);
    if (ended_ || reactor_ == nullptr) return;
    const size_t with_grpc = writing_ ? 1 : 0;
    if (events_.size() > with_grpc && merge(&events_.back())) return;
    events_.push_back(std::move(event));
    Pump();
  }

  // Events that wait for the reader.
  size_t waiting() const {
    MutexLock lock(&mu_);
    return events_.size();
  }

  // Ends the RPC once everything queued is written. Only the first call counts.
  void Finish(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
    status_ = ToGrpcStatus(status);
    Pump();
  }

 private:
  class Reactor final : public grpc::ServerWriteReactor<Event> {
   public:
    explicit Reactor(std::function<void()> on_cancel)
        : on_cancel_(std::move(on_cancel)), stream_(std::make_shared<EventStream>(this)) {}
    void OnWriteDone(bool ok) override { stream_->OnWriteDone(ok); }
    void OnCancel() override {
      if (on_cancel_ != nullptr) on_cancel_();
      stream_->Drop();
    }
    void OnDone() override {
      stream_->Detach();
      delete this;
    }
    const std::function<void()> on_cancel_;
    const std::shared_ptr<EventStream> stream_;
  };

 public:
  explicit EventStream(Reactor* reactor) : reactor_(reactor) {}

 private:
  void OnWriteDone(bool ok) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!events_.empty()) events_.pop_front();
    if (!ok) events_.clear();
    Pump();
  }
  // Nobody reads any more: what waits is of no use.
  void Drop() {
    MutexLock lock(&mu_);
    while (events_.size() > (writing_ ? 1 : 0)) events_.pop_back();
    if (!ended_) {
      ended_ = true;
      status_ = grpc::Status::CANCELLED;
    }
    Pump();
  }
  void Detach() {
    MutexLock lock(&mu_);
    reactor_ = nullptr;
    ended_ = true;
    events_.clear();
  }
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reactor_ == nullptr || writing_ || finished_) return;
    if (!events_.empty()) {
      writing_ = true;
      reactor_->StartWrite(&events_.front());
    } else if (ended_) {
      finished_ = true;
      reactor_->Finish(status_);
    }
  }

  mutable Mutex mu_;
  Reactor* reactor_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);  // front is with gRPC while writing_
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
