// Role: one streaming call to a worker, read one event at a time on a strand. The next event is asked for
// when the last one was dealt with and the reader is not paused: a slow client holds the worker back by
// gRPC's flow control, and nothing piles up here. Threads: everything but the gRPC callbacks is called on the
// strand.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/status_codec.h"
#include "router/strand.h"

namespace sluice {

template <class Event>
class WorkerCall final : public grpc::ClientReadReactor<Event>,
                         public std::enable_shared_from_this<WorkerCall<Event>> {
 public:
  // Both run on the strand. on_end comes once and last.
  using OnEvent = std::function<void(const Event&)>;
  using OnEnd = std::function<void(const absl::Status&)>;

  // open: starts the RPC on a stub, e.g. stub->async()->Prefill(context, &request, reactor).
  static std::shared_ptr<WorkerCall> Start(
      Strand* strand, absl::Duration timeout,
      const std::function<void(grpc::ClientContext*, grpc::ClientReadReactor<Event>*)>& open,
      OnEvent on_event, OnEnd on_end) {
    auto call = std::shared_ptr<WorkerCall>(new WorkerCall(strand, std::move(on_event), std::move(on_end)));
    call->self_ = call;
    call->context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    open(&call->context_, call.get());
    call->AddHold();  // reads are started outside of gRPC's callbacks
    call->reading_ = true;
    call->StartRead(&call->event_);
    call->StartCall();
    return call;
  }

  void Cancel() {
    if (released_) return;
    context_.TryCancel();
    cancelled_ = true;
    if (!reading_) Release();
  }

  void SetPaused(bool paused) {
    paused_ = paused;
    if (!paused_ && !reading_ && !released_) Next();
  }

 private:
  WorkerCall(Strand* strand, OnEvent on_event, OnEnd on_end)
      : strand_(strand), on_event_(std::move(on_event)), on_end_(std::move(on_end)) {}

  void OnReadDone(bool ok) override {
    strand_->Post([call = this->shared_from_this(), ok] { call->Read(ok); });
  }
  void OnDone(const grpc::Status& status) override {
    strand_->Post([call = std::move(self_), status = FromGrpcStatus(status)] {
      OnEnd on_end = std::move(call->on_end_);
      call->on_event_ = nullptr;
      on_end(status);
    });
  }

  void Read(bool ok) {
    if (ok && !cancelled_) on_event_(event_);  // may cancel or pause
    reading_ = false;
    if (!ok || cancelled_) return Release();
    if (!paused_) Next();
  }
  void Next() {
    reading_ = true;
    event_.Clear();
    this->StartRead(&event_);
  }
  void Release() {
    if (released_) return;
    released_ = true;
    this->RemoveHold();
  }

  Strand* const strand_;  // outlives on_end
  OnEvent on_event_;
  OnEnd on_end_;
  std::shared_ptr<WorkerCall> self_;  // until OnDone
  grpc::ClientContext context_;
  Event event_;
  bool reading_ = false, paused_ = false, cancelled_ = false, released_ = false;
};

}  // namespace sluice
