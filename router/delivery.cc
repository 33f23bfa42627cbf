#include "router/delivery.h"

#include <utility>

#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

// What the client has not taken is of no use to it.
bool NobodyReads(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) || ReasonOf(status) == "SLOW_CLIENT";
}

}  // namespace

void Delivery::Send(v1::ChatEvent event) {
  if (ended()) return;
  event.set_seq(seq_++);
  sink_->Send(event);
  CheckBacklog();
}

void Delivery::Drained() {
  last_taken_ = clock_->Now();
  CheckBacklog();
}

void Delivery::CheckBacklog() {
  if (ended()) return;
  size_t backlog = sink_->backlog_bytes();
  if (ending_.has_value()) {
    if (backlog == 0) End(*ending_);
    return;
  }
  if (paused_ == (backlog > (paused_ ? bounds_.backlog_bytes / 2 : bounds_.backlog_bytes))) return;
  paused_ = !paused_;
  owner_->SetPaused(paused_);
  if (paused_) WatchClient();
}

void Delivery::WatchClient() {
  if (watching_) return;
  watching_ = true;
  last_taken_ = clock_->Now();
  owner_->JudgeAt(last_taken_ + bounds_.patience);
}

void Delivery::Judge() {
  watching_ = !ended() && (paused_ || ending_.has_value());
  if (!watching_) return;
  absl::Time patience = last_taken_ + bounds_.patience;
  if (clock_->Now() < patience) return owner_->JudgeAt(patience);
  owner_->ClientTooSlow(WithRetryAfter(
      WithReason(absl::ResourceExhaustedError("the client reads too slowly; read the stream as it comes"),
                 "SLOW_CLIENT"),
      absl::Seconds(1)));
}

void Delivery::Finish(const absl::Status& status) {
  if (ended() || ending_.has_value()) return;
  ending_ = status;
  if (sink_->backlog_bytes() == 0 || NobodyReads(status)) return End(status);
  WatchClient();
}

void Delivery::End(const absl::Status& status) {
  if (ended()) return;
  ReplySink* sink = std::exchange(sink_, nullptr);
  owner_->Delivered(status);
  sink->Finish(status);
}

}  // namespace sluice
