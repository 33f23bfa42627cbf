// Role: the persistent threads of a CPU backend. Run() splits a job into tasks, claimed in ascending order by
// whoever is free; a task's result depends on its index only, never on which thread ran it. Idle threads spin
// for some tens of microseconds, then park. Why not one thread per op: a decode step is hundreds of ops of a
// few microseconds. Threads: Run() may be called from any thread; jobs take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace sluice {

class ThreadPool {
 public:
  // threads counts the caller of Run(), which works too.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(task, thread) for each task in [0, n_tasks); thread in [0, threads()). Returns when all are done.
  template <class Body>
  void Run(int n_tasks, Body&& body) {
    auto call = [](void* context, int task, int thread) { (*static_cast<Body*>(context))(task, thread); };
    RunTasks(n_tasks, call, &body);
  }

 private:
  using Call = void (*)(void* context, int task, int thread);
  void RunTasks(int n_tasks, Call call, void* context);
  bool RunOne(int thread);  // false when no task is left
  void WorkerLoop(int thread);

  Mutex turn_;  // held by the job that runs
  // The job. Written before tickets_ says that tasks are left, and stable until all of them are done.
  Call call_ = nullptr;
  void* context_ = nullptr;
  int n_tasks_ = 0;
  alignas(64) std::atomic<uint64_t> tickets_{0};  // job number << 32 | tasks left to claim
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<uint32_t> wake_{
      0};  // changes with every job and at the end; parked threads wait on it
  std::atomic<bool> stop_{false};
  std::vector<NamedThread> workers_;
};

}  // namespace sluice
