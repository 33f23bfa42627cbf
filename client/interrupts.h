// Role: Ctrl-C and SIGTERM as something to poll, and as a cancel of the call under way.
// Why: a signal handler may do almost nothing, and Ctrl-C must end one turn, not the program.
// Threads: Interrupts blocks the signals in the thread that makes it and in those started later: make it
// before the first gRPC channel. CancelOnInterrupt runs one thread, "interrupts", while it lives.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>

#include "common/base/thread.h"

namespace sluice {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable while a signal waits.
  int fd() const { return fd_; }
  // The signal that waits, or 0.
  int Take();

 private:
  sigset_t before_;
  int fd_;
};

// Calls `cancel` once, at the first signal. `interrupts` may be null: then nothing happens.
class CancelOnInterrupt {
 public:
  CancelOnInterrupt(Interrupts* interrupts, std::function<void()> cancel);
  ~CancelOnInterrupt();

  // The signal that came, or 0.
  int signal() const { return signal_.load(); }

 private:
  Interrupts* const interrupts_;
  const std::function<void()> cancel_;
  std::atomic<int> signal_{0};
  int stop_fd_ = -1;
  NamedThread thread_;
};

}  // namespace sluice
