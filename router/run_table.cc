#include "router/request_run.h"
#include "router/run_services.h"

namespace sluice {

bool RunTable::Add(const std::shared_ptr<RequestRun>& run) {
  MutexLock lock(&mu_);
  if (static_cast<int>(runs_.size()) >= capacity_) return false;
  runs_.emplace(run.get(), run);
  return true;
}

void RunTable::Remove(RequestRun* run) {
  MutexLock lock(&mu_);
  runs_.erase(run);
}

std::vector<std::shared_ptr<RequestRun>> RunTable::All() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<RequestRun>> all;
  for (const auto& [key, weak] : runs_) {
    if (std::shared_ptr<RequestRun> run = weak.lock()) all.push_back(std::move(run));
  }
  return all;
}

int RunTable::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(runs_.size());
}

}  // namespace sluice
