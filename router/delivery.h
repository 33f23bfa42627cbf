// Role: what one request sends to its client: numbers the events, and watches how much of them the client has
// not taken. Above a bound its owner is to pause; when the client takes nothing for the slow-client timeout,
// the request is to end; the last event counts as delivered when the client has taken it.
// Why it exists: patience with a client is one idea, whatever is sent. Threads: the run's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/reply_sink.h"

namespace sluice {

class Delivery {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The backlog has passed its bound, or has fallen below half of it.
    virtual void SetPaused(bool paused) = 0;
    // To call Judge at that time.
    virtual void JudgeAt(absl::Time time) = 0;
    // To call Finish or End with this, sooner or later.
    virtual void ClientTooSlow(const absl::Status& status) = 0;
    // Once and last, before the client sees the status.
    virtual void Delivered(const absl::Status& status) = 0;
  };
  struct Bounds {
    size_t backlog_bytes;
    absl::Duration patience;  // with a client that takes nothing of its backlog
  };

  // sink lives until its Finish.
  Delivery(ReplySink* sink, const Bounds& bounds, const Clock* clock, Owner* owner)
      : sink_(sink), bounds_(bounds), clock_(clock), owner_(owner) {}

  void Send(v1::ChatEvent event);
  // The sink's backlog has shrunk.
  void Drained();
  void Judge();
  // The last event is sent; ends when the client has taken all, or lost our patience.
  void Finish(const absl::Status& status);
  // Ends now; what the client has not taken is dropped.
  void End(const absl::Status& status);

  bool paused() const { return paused_; }
  bool finishing() const { return ending_.has_value(); }
  bool ended() const { return sink_ == nullptr; }

 private:
  void CheckBacklog();
  void WatchClient();  // while something waits for it

  ReplySink* sink_;  // null after End
  const Bounds bounds_;
  const Clock* const clock_;
  Owner* const owner_;
  uint64_t seq_ = 0;
  bool paused_ = false;
  std::optional<absl::Status> ending_;
  bool watching_ = false;
  absl::Time last_taken_;
};

}  // namespace sluice
