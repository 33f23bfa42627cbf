// Role: one control stream of the hand-off, seen from a transfer loop: messages in arrive in an inbox,
// messages out are queued and written in order. The same on both ends; only who dialled differs. Threads:
// Send and Close are called by the transfer loop; the rest by gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/seen_order.h"
#include "common/handoff/messages.h"
#include "common/rpc/handoff_codec.h"
#include "common/rpc/status_codec.h"

namespace sluice {

// What a transfer loop hears of a stream. `message` empty: the stream is gone, `status` says why.
struct StreamEvent {
  PeerId peer;
  std::optional<HandoffMessage> message;
  absl::Status status;
  // What is left of a dialled stream, channel included, for the loop to drop: a callback thread of gRPC that
  // drops the last channel of a process waits for itself.
  std::shared_ptr<void> remains;
};

// The loop's handle. A handle whose stream is gone swallows what it is given.
class HandoffStream {
 public:
  virtual ~HandoffStream() = default;
  virtual void Send(const HandoffMessage& message) = 0;
  virtual void Close() = 0;
};

// Writes in order, one at a time, at most kMaxQueued waiting: a peer that stopped reading loses its stream.
// Reactor: grpc::ServerBidiReactor<HandoffMessage, HandoffMessage> or grpc::ClientBidiReactor of the same.
template <class Reactor>
class HandoffReactor : public Reactor {
 public:
  using Inbox = std::function<void(StreamEvent)>;
  HandoffReactor(PeerId peer, Inbox inbox) : peer_(peer), inbox_(std::move(inbox)) {}

  // False: too many are waiting.
  bool Enqueue(const HandoffMessage& message) {
    MutexLock lock(&mu_);
    if (closed_) return true;
    if (queue_.size() >= kMaxQueued) return false;
    SeenOrder::Before();
    queue_.push_back(HandoffToProto(message));
    if (!writing_) WriteNext();
    return true;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      OnBroken();
      return;
    }
    SeenOrder::After();
    absl::StatusOr<HandoffMessage> message = HandoffFromProto(in_);
    if (message.ok()) inbox_(StreamEvent{peer_, *std::move(message), absl::OkStatus(), nullptr});
    this->StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    bool broken = false;
    {
      MutexLock lock(&mu_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) {
        closed_ = broken = true;
      } else if (!queue_.empty() && !closed_) {
        WriteNext();
      }
    }
    if (broken) OnBroken();
  }

 protected:
  static constexpr size_t kMaxQueued = 4096;
  // Reading or writing failed; may come more than once.
  virtual void OnBroken() = 0;
  void StartReading() { this->StartRead(&in_); }
  void CloseQueue() {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  void ReportGone(const absl::Status& status, std::shared_ptr<void> remains = nullptr) {
    inbox_(StreamEvent{peer_, std::nullopt, status, std::move(remains)});
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    this->StartWrite(&queue_.front());
  }

  const PeerId peer_;
  const Inbox inbox_;
  internal::v1::HandoffMessage in_;
  Mutex mu_;
  std::deque<internal::v1::HandoffMessage> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
