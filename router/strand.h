// Role: tasks that run one at a time and in order, on whichever thread brings work. Why it exists: a
// request's events come from gRPC, timers and the work pool; on its strand its state needs no lock, and a
// callback may post while it runs inside one. Threads: Post from any.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/mutex.h"

namespace sluice {

class Strand {
 public:
  // Runs the task now, unless another is running: then after it, on that thread. A task must not block.
  void Post(std::function<void()> task) {
    std::shared_ptr<State> state = state_;  // a task may destroy this strand
    {
      MutexLock lock(&state->mu);
      state->tasks.push_back(std::move(task));
      if (state->running) return;
      state->running = true;
    }
    for (;;) {
      std::function<void()> next;
      {
        MutexLock lock(&state->mu);
        if (state->tasks.empty()) {
          state->running = false;
          return;
        }
        next = std::move(state->tasks.front());
        state->tasks.pop_front();
      }
      next();
    }
  }

 private:
  struct State {
    Mutex mu;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mu);
    bool running ABSL_GUARDED_BY(mu) = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace sluice
