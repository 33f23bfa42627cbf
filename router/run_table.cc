#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"
#include "router/request_run.h"
#include "router/run_services.h"

namespace sluice {

absl::Status QueueFull(int capacity) {
  return WithRetryAfter(
      WithReason(absl::ResourceExhaustedError(absl::StrCat(
                     capacity, " requests are in flight, the most this router takes (--max-in-flight)")),
                 "QUEUE_FULL"),
      absl::Seconds(1));
}

absl::Status RunTable::Add(const std::shared_ptr<RequestRun>& run) {
  MutexLock lock(&mu_);
  if (taken_ >= capacity_) return QueueFull(capacity_);
  runs_.emplace(run.get(), Entry{run, ""});
  ++taken_;
  return absl::OkStatus();
}

absl::Status RunTable::Widen(RequestRun* run, int choices) {
  if (choices > capacity_) {
    return BadField("sampling.n", absl::StrCat(choices, " choices are more than the ", capacity_,
                                               " requests that this router takes (--max-in-flight)"));
  }
  MutexLock lock(&mu_);
  auto entry = runs_.find(run);
  if (entry == runs_.end()) return absl::OkStatus();
  const int more = choices - entry->second.choices;
  if (taken_ + more > capacity_) return QueueFull(capacity_);
  taken_ += more;
  entry->second.choices = choices;
  return absl::OkStatus();
}

void RunTable::Remove(RequestRun* run) {
  MutexLock lock(&mu_);
  auto entry = runs_.find(run);
  if (entry == runs_.end()) return;
  taken_ -= entry->second.choices;
  runs_.erase(entry);
}

void RunTable::Name(RequestRun* run, const std::string& request_id) {
  MutexLock lock(&mu_);
  auto entry = runs_.find(run);
  if (entry != runs_.end()) entry->second.request_id = request_id;
}

std::vector<std::shared_ptr<RequestRun>> RunTable::All() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<RequestRun>> all;
  for (const auto& [key, entry] : runs_) {
    if (std::shared_ptr<RequestRun> run = entry.run.lock()) all.push_back(std::move(run));
  }
  return all;
}

std::vector<std::shared_ptr<RequestRun>> RunTable::Named(const std::string& request_id) const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<RequestRun>> named;
  for (const auto& [key, entry] : runs_) {
    if (entry.request_id != request_id) continue;
    if (std::shared_ptr<RequestRun> run = entry.run.lock()) named.push_back(std::move(run));
  }
  return named;
}

int RunTable::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(runs_.size());
}

}  // namespace sluice
