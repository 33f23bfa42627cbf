#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <string>

namespace sluice {
namespace {

constexpr int kSpins = 2000;  // pauses before a worker parks: about 50 us

}  // namespace

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i)
    workers_.emplace_back("sluice-cpu-" + std::to_string(i), [this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  workers_.clear();
}

bool ThreadPool::RunOne(int thread) {
  uint64_t tickets = tickets_.load(std::memory_order_acquire);
  uint32_t left;
  do {
    left = static_cast<uint32_t>(tickets);
    if (left == 0) return false;
  } while (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acquire,
                                           std::memory_order_acquire));
  // The claimed task keeps its job unfinished, so the job's fields stay as they are until it is done.
  call_(context_, n_tasks_ - static_cast<int>(left), thread);
  unfinished_.fetch_sub(1, std::memory_order_release);
  return true;
}

void ThreadPool::WorkerLoop(int thread) {
  while (!stop_.load(std::memory_order_relaxed)) {
    uint32_t seen = wake_.load(std::memory_order_acquire);
    int spins = 0;
    while (!stop_.load(std::memory_order_relaxed) && spins < kSpins) {
      if (RunOne(thread)) {
        spins = 0;
        seen = wake_.load(std::memory_order_acquire);
      } else {
        _mm_pause();
        ++spins;
      }
    }
    if (!stop_.load(std::memory_order_relaxed) && !RunOne(thread))
      wake_.wait(seen, std::memory_order_acquire);
  }
}

void ThreadPool::RunTasks(int n_tasks, Call call, void* context) {
  if (n_tasks <= 0) return;
  MutexLock lock(&turn_);
  if (n_tasks == 1 || workers_.empty()) {
    for (int i = 0; i < n_tasks; ++i) call(context, i, 0);
    return;
  }
  call_ = call;
  context_ = context;
  n_tasks_ = n_tasks;
  unfinished_.store(n_tasks, std::memory_order_relaxed);
  uint64_t job = (tickets_.load(std::memory_order_relaxed) >> 32) + 1;
  tickets_.store(job << 32 | static_cast<uint32_t>(n_tasks), std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  while (RunOne(0)) {
  }
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins % 64 == 63) {
      sched_yield();  // a worker of ours may wait for this core
    } else {
      _mm_pause();
    }
  }
}

}  // namespace sluice
