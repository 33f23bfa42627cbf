#include "router/work_pool.h"

#include <utility>

namespace sluice {

WorkPool::WorkPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back("work", [this] { Run(); });
}

WorkPool::~WorkPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (NamedThread& thread : threads_) thread.Join();
}

void WorkPool::Submit(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

void WorkPool::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) wake_.WaitFor(&mu_, absl::Seconds(1));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace sluice
