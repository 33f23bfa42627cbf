#include "client/load_run.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// A user whose request failed pauses: a router that is away must not be asked a million times.
constexpr absl::Duration kPause = absl::Milliseconds(100);

// One dialogue under way: at any time it waits for exactly one call.
struct User {
  uint64_t id = 0;
  Dialogue dialogue;
  int turn = 0;
  absl::Time arrival;  // of this turn
  bool failed = false;
  std::unique_ptr<LoadConversation> conversation;
};

class LoadRun {
 public:
  LoadRun(const LoadTarget& target, const LoadShape& shape, const LoadSettings& settings,
          const LoadHooks& hooks)
      : target_(target),
        shape_(shape),
        settings_(settings),
        hooks_(hooks),
        inbox_(static_cast<size_t>(shape.concurrency) + 1),  // a call of each user, and Ctrl-C
        origin_(SteadyClock().Now()) {
    Await();
  }

  LoadResult Run() {
    CancelOnInterrupt cancel(target_.interrupts(), [this] { Post([this] { Stop(); }); });
    while (true) {
      const absl::Time now = SteadyClock().Now();
      BeginDue(now);
      if (users_.empty() && NoMore(now)) break;
      if (!ahead_.has_value() && !NoMore(now)) ahead_ = hooks_.next();
      for (const std::function<void()>& event : inbox_.PopAll(UntilDue(now))) event();
      if (now - shown_ >= kTick) {
        shown_ = now;
        hooks_.progress(Share(now), static_cast<int>(result_.records.size()), failed_);
      }
    }
    result_.interrupted = cancel.signal() != 0;
    for (const RequestRecord& record : result_.records)
      result_.duration = std::max(result_.duration, record.end);
    return std::move(result_);
  }

 private:
  void Post(std::function<void()> event) { SLUICE_CHECK(inbox_.TryPush(std::move(event))); }

  // Of the loop itself; turns under way may follow.
  bool NoMore(absl::Time now) const {
    if (stopped_ || (shape_.requests.has_value() && started_ >= *shape_.requests)) return true;
    const absl::Time next = open_loop() ? due_ : now;
    return next - origin_ >= shape_.duration.value_or(absl::InfiniteDuration());
  }

  bool open_loop() const { return shape_.arrivals != nullptr; }

  void Await() {
    if (!open_loop()) return;
    const std::optional<absl::Duration> next = shape_.arrivals();
    due_ = next.has_value() ? origin_ + *next : absl::InfiniteFuture();
  }

  void BeginDue(absl::Time now) {
    while (!pauses_.empty() && pauses_.front() <= now) pauses_.pop_front();
    while (!NoMore(now) && HasRoom() && (!open_loop() || due_ <= now)) {
      Begin();
      Await();
    }
  }
  bool HasRoom() const { return users_.size() + pauses_.size() < static_cast<size_t>(shape_.concurrency); }

  absl::Duration UntilDue(absl::Time now) const {
    absl::Duration wait = kTick;
    if (!pauses_.empty()) wait = std::min(wait, pauses_.front() - now);
    if (open_loop() && HasRoom() && !NoMore(now)) wait = std::min(wait, due_ - now);
    return std::max(wait, absl::ZeroDuration());
  }

  double Share(absl::Time now) const {
    double share = 0;
    if (shape_.requests.has_value()) share = static_cast<double>(result_.records.size()) / *shape_.requests;
    if (shape_.duration.has_value())
      share = std::max(share, absl::FDivDuration(now - origin_, *shape_.duration));
    return share;
  }

  void Begin() {
    const uint64_t id = next_id_++;
    User* user = (users_[id] = std::make_unique<User>()).get();
    user->id = id;
    user->dialogue = ahead_.has_value() ? *std::exchange(ahead_, std::nullopt) : hooks_.next();
    user->arrival = open_loop() ? due_ : SteadyClock().Now();
    ++started_;
    user->conversation = target_.Begin(settings_, origin_);
    if (user->dialogue.turns.size() == 1) return Send(user);
    user->conversation->Open([this, user] { Post([this, user] { OnOpen(user); }); });
  }

  void OnOpen(User* user) {
    // A user of a closed loop has nothing to wait for before the conversation is there.
    if (!open_loop()) user->arrival = SteadyClock().Now();
    const absl::Status opened = user->conversation->Opened();
    if (opened.ok() && !stopped_) return Send(user);
    if (!opened.ok()) {
      RequestRecord record;
      record.status = opened;
      record.sent = record.end = SteadyClock().Now() - origin_;
      Add(user, std::move(record));
    }
    End(user);
  }

  void Send(User* user) {
    result_.max_in_flight = std::max(result_.max_in_flight, ++in_flight_);
    user->conversation->Send(std::move(user->dialogue.turns[static_cast<size_t>(user->turn)]),
                             user->dialogue.output_tokens,
                             [this, user] { Post([this, user] { OnEnd(user); }); });
  }

  void OnEnd(User* user) {
    --in_flight_;
    RequestRecord record = std::move(user->conversation->record());
    const bool completed = record.completed();
    Add(user, std::move(record));
    const bool requests_left = !shape_.requests.has_value() || started_ < *shape_.requests;
    const absl::Time now = SteadyClock().Now();
    const bool time_left = !shape_.duration.has_value() || now - origin_ < *shape_.duration;
    if (!completed || stopped_ || !requests_left || !time_left ||
        ++user->turn == static_cast<int>(user->dialogue.turns.size())) {
      return End(user);
    }
    ++started_;
    user->arrival = now;
    Send(user);
  }

  void Add(User* user, RequestRecord record) {
    record.dialogue = user->id;
    record.turn = user->turn;
    record.arrival = user->arrival - origin_;
    record.interrupted = stopped_ && absl::IsCancelled(record.status);
    user->failed = !record.completed();
    failed_ += user->failed;
    result_.records.push_back(std::move(record));
  }

  void End(User* user) {
    if (user->dialogue.turns.size() == 1) return Forget(user);
    user->conversation->Close([this, user] { Post([this, user] { Forget(user); }); });
  }

  void Forget(User* user) {
    if (user->failed && !open_loop()) pauses_.push_back(SteadyClock().Now() + kPause);
    users_.erase(user->id);
  }

  void Stop() {
    stopped_ = true;
    for (auto& [id, user] : users_) user->conversation->Cancel();
  }

  const LoadTarget& target_;
  const LoadShape& shape_;
  const LoadSettings& settings_;
  const LoadHooks& hooks_;
  BoundedQueue<std::function<void()>> inbox_;
  const absl::Time origin_;
  absl::Time due_;                 // the next arrival of an open loop
  std::optional<Dialogue> ahead_;  // made while there is time: making one would delay its request
  absl::Time shown_ = absl::InfinitePast();
  std::map<uint64_t, std::unique_ptr<User>> users_;
  std::deque<absl::Time> pauses_;  // ends of pauses, ascending; each holds a user's place
  uint64_t next_id_ = 0;
  int started_ = 0, failed_ = 0, in_flight_ = 0;
  bool stopped_ = false;
  LoadResult result_;
};

}  // namespace

LoadResult RunLoad(const LoadTarget& target, const LoadShape& shape, const LoadSettings& settings,
                   const LoadHooks& hooks) {
  return LoadRun(target, shape, settings, hooks).Run();
}

}  // namespace sluice
