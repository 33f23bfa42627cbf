#include "router/stats_watch.h"

#include <atomic>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/event_stream.h"

namespace sluice {
namespace {

using Stream = EventStream<v1::Stats>;

class Watch final : public std::enable_shared_from_this<Watch> {
 public:
  Watch(const RunServices* services, absl::Time started, absl::Duration interval)
      : services_(services), started_(started), interval_(interval) {}

  grpc::ServerWriteReactor<v1::Stats>* Open() {
    grpc::ServerWriteReactor<v1::Stats>* reactor = nullptr;
    stream_ = Stream::Open(
        [watch = weak_from_this()] {
          if (std::shared_ptr<Watch> self = watch.lock()) self->gone_ = true;
        },
        &reactor);
    Next();
    return reactor;
  }

 private:
  void Next() {
    services_->pool->Submit([self = shared_from_this()] {
      if (self->gone_) return;
      if (self->stream_->waiting() == 0) {
        v1::Stats stats;
        absl::Status status = ReadStats(*self->services_, self->started_, &stats);
        if (!status.ok()) return self->stream_->Finish(status);
        self->stream_->Push(std::move(stats));
      }
      self->services_->timers->At(self->services_->clock->Now() + self->interval_, [self] { self->Next(); });
    });
  }

  const RunServices* const services_;
  const absl::Time started_;
  const absl::Duration interval_;
  std::shared_ptr<Stream> stream_;
  std::atomic<bool> gone_{false};
};

}  // namespace

absl::Status ReadStats(const RunServices& services, absl::Time started, v1::Stats* stats) {
  stats->set_requests_total(services.stats->requests);
  stats->set_requests_failed(services.stats->failed);
  stats->set_in_flight(services.runs->size());
  stats->set_prompt_tokens(services.stats->prompt_tokens);
  stats->set_cached_tokens(services.stats->cached_tokens);
  stats->set_completion_tokens(services.stats->completion_tokens);
  stats->set_uptime_seconds(absl::ToDoubleSeconds(services.clock->Now() - started));
  stats->set_ready_prefill(services.cluster->Count(WorkerRole::kPrefill, WorkerState::kReady));
  stats->set_ready_decode(services.cluster->Count(WorkerRole::kDecode, WorkerState::kReady));
  SLUICE_ASSIGN_OR_RETURN(SessionTotals totals, services.store->Totals());
  stats->set_sessions(totals.sessions);
  stats->set_session_bytes(totals.bytes);
  return absl::OkStatus();
}

grpc::ServerWriteReactor<v1::Stats>* WatchStats(const RunServices* services, absl::Time started,
                                                absl::Duration interval) {
  return std::make_shared<Watch>(services, started, interval)->Open();
}

}  // namespace sluice
