// Role: threads for what takes a while (tokenising, the session store), so that no gRPC thread blocks.
// Threads: its own ("work"); Submit from any.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace sluice {

class WorkPool {
 public:
  explicit WorkPool(int threads);
  ~WorkPool();  // runs what was submitted, then joins

  // Never refuses: the requests in flight are bounded, and each has a few tasks at most.
  void Submit(std::function<void()> task);

 private:
  void Run();

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<NamedThread> threads_;
};

}  // namespace sluice
