// Role: calls back at a time. Threads: one of its own ("timers"), on which callbacks run: they must not
// block. At from any thread.
#pragma once

#include <functional>
#include <map>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace sluice {

class Timers {
 public:
  explicit Timers(const Clock* clock);
  ~Timers() { Stop(); }

  // What is not due yet never runs. Idempotent.
  void Stop();

  // Does nothing after Stop.
  void At(absl::Time time, std::function<void()> task);

 private:
  void Run();

  const Clock* const clock_;
  Mutex mu_;
  CondVar wake_;
  std::multimap<absl::Time, std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  NamedThread thread_;
};

}  // namespace sluice
