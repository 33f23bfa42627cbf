#include "router/request_run.h"
#include "router/run_services.h"

namespace sluice {

bool RunTable::Add(const std::shared_ptr<RequestRun>& run) {
  MutexLock lock(&mu_);
  if (static_cast<int>(runs_.size()) >= capacity_) return false;
  runs_.emplace(run.get(), Entry{run, ""});
  return true;
}

void RunTable::Remove(RequestRun* run) {
  MutexLock lock(&mu_);
  runs_.erase(run);
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
