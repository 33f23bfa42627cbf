#include "router/timers.h"

#include <algorithm>
#include <utility>

namespace sluice {

Timers::Timers(const Clock* clock) : clock_(clock), thread_("timers", [this] { Run(); }) {}

void Timers::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

void Timers::At(absl::Time time, std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    tasks_.emplace(time, std::move(task));
  }
  wake_.NotifyAll();
}

void Timers::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      absl::Duration wait = absl::Seconds(1);
      if (!tasks_.empty()) wait = std::min(wait, tasks_.begin()->first - clock_->Now());
      if (tasks_.empty() || wait > absl::ZeroDuration()) {
        wake_.WaitFor(&mu_, wait);
        continue;
      }
      task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
    }
    task();
  }
}

}  // namespace sluice
