#include "client/interrupts.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "common/base/status.h"

namespace sluice {

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  SLUICE_CHECK(fd_ >= 0);
}

Interrupts::~Interrupts() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int Interrupts::Take() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

CancelOnInterrupt::CancelOnInterrupt(Interrupts* interrupts, std::function<void()> cancel)
    : interrupts_(interrupts), cancel_(std::move(cancel)) {
  if (interrupts_ == nullptr) return;
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  SLUICE_CHECK(stop_fd_ >= 0);
  thread_ = NamedThread("interrupts", [this] {
    while (true) {
      pollfd fds[] = {{interrupts_->fd(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) continue;  // EINTR
      if (fds[1].revents != 0) return;
      if (int signal = interrupts_->Take(); signal != 0) {
        signal_ = signal;
        cancel_();
        return;
      }
    }
  });
}

CancelOnInterrupt::~CancelOnInterrupt() {
  if (interrupts_ == nullptr) return;
  eventfd_write(stop_fd_, 1);
  thread_.Join();
  close(stop_fd_);
}

}  // namespace sluice
