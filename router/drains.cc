#include "router/drains.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/event_stream.h"

namespace sluice {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr double kDefaultSeconds = 60, kMostSeconds = 86400;

constexpr char kNoTarget[] = "target: name a worker, or router = true";

absl::StatusOr<absl::Duration> DeadlineOf(const v1::DrainRequest& request) {
  const double seconds = request.has_deadline_seconds() ? request.deadline_seconds() : kDefaultSeconds;
  if (seconds > 0 && seconds <= kMostSeconds) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat("deadline_seconds: more than 0 and at most ", kMostSeconds, ", got ", seconds));
}

}  // namespace

// One stream: looks every 50 ms, until nothing is left.
class Drains::Watch final : public std::enable_shared_from_this<Watch> {
 public:
  Watch(const RunServices* services, std::function<DrainState()> state, absl::Duration at_most,
        std::shared_ptr<EventStream<v1::DrainProgress>> events, std::shared_ptr<std::atomic<bool>> gone)
      : services_(services),
        state_(std::move(state)),
        until_(services->clock->Now() + at_most),
        events_(std::move(events)),
        gone_(std::move(gone)) {}

  void Look() {
    if (*gone_) return;
    const DrainState state = state_();
    const absl::Time now = services_->clock->Now();
    if (state.stage == DrainState::kOff) {
      return events_->Finish(absl::AbortedError("undrained before all requests had ended"));
    }
    if (state.stage != DrainState::kAsked) {
      Tell(state.remaining, now);
      if (state.remaining == 0) return events_->Finish(absl::OkStatus());
    }
    if (now >= until_) return events_->Finish(TooLate(state));
    services_->timers->At(now + kLook, [self = shared_from_this()] { self->Look(); });
  }

 private:
  void Tell(int remaining, absl::Time now) {
    if (told_ == remaining) return;
    told_ = remaining;
    v1::DrainProgress progress;
    progress.set_remaining(remaining);
    progress.set_seconds_left(absl::ToDoubleSeconds(std::max(until_ - now, absl::ZeroDuration())));
    events_->Push(std::move(progress));
  }
  static absl::Status TooLate(const DrainState& state) {
    const std::string left = state.stage == DrainState::kAsked
                                 ? "the worker has not answered"
                                 : absl::StrCat(state.remaining, " requests are left");
    return absl::DeadlineExceededError(absl::StrCat(left, "; the drain goes on until Undrain"));
  }

  const RunServices* const services_;
  const std::function<DrainState()> state_;
  const absl::Time until_;
  const std::shared_ptr<EventStream<v1::DrainProgress>> events_;
  const std::shared_ptr<std::atomic<bool>> gone_;  // nobody reads
  std::optional<int> told_;
};

absl::StatusOr<std::function<DrainState()>> Drains::Begin(const v1::DrainRequest& request) {
  if (request.target_case() == v1::DrainRequest::kWorker) {
    SLUICE_ASSIGN_OR_RETURN(std::string incarnation, services_->cluster->Order(request.worker(), true));
    spdlog::info("drain worker={} incarnation={}", request.worker(), incarnation);
    registry_->Tell(incarnation);
    return std::function<DrainState()>(
        [cluster = services_->cluster, incarnation] { return cluster->Draining(incarnation); });
  }
  if (!request.router()) return absl::InvalidArgumentError(kNoTarget);
  drain_router_(true);
  return std::function<DrainState()>([services = services_] {
    return DrainState{*services->draining ? DrainState::kOn : DrainState::kOff, services->runs->size()};
  });
}

grpc::ServerWriteReactor<v1::DrainProgress>* Drains::Drain(const v1::DrainRequest& request) {
  auto gone = std::make_shared<std::atomic<bool>>(false);
  grpc::ServerWriteReactor<v1::DrainProgress>* reactor = nullptr;
  auto events = EventStream<v1::DrainProgress>::Open([gone] { *gone = true; }, &reactor);
  const absl::StatusOr<absl::Duration> at_most = DeadlineOf(request);
  if (!at_most.ok()) {
    events->Finish(at_most.status());
    return reactor;
  }
  absl::StatusOr<std::function<DrainState()>> state = Begin(request);
  if (!state.ok()) {
    events->Finish(state.status());
    return reactor;
  }
  auto watch =
      std::make_shared<Watch>(services_, *std::move(state), *at_most, std::move(events), std::move(gone));
  services_->timers->At(services_->clock->Now(), [watch] { watch->Look(); });
  return reactor;
}

absl::Status Drains::Undrain(const v1::UndrainRequest& request) {
  if (request.target_case() == v1::UndrainRequest::kWorker) {
    SLUICE_ASSIGN_OR_RETURN(std::string incarnation, services_->cluster->Order(request.worker(), false));
    spdlog::info("undrain worker={} incarnation={}", request.worker(), incarnation);
    registry_->Tell(incarnation);
    return absl::OkStatus();
  }
  if (!request.router()) return absl::InvalidArgumentError(kNoTarget);
  drain_router_(false);
  return absl::OkStatus();
}

}  // namespace sluice
