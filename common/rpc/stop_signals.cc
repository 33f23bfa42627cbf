#include "common/rpc/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "common/base/clock.h"

namespace sluice {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void WaitForStopSignal() {
  const sigset_t set = StopSignals();
  int signal = 0;
  sigwait(&set, &signal);
}

bool StopSignalWithin(absl::Duration time) {
  const sigset_t set = StopSignals();
  const timespec at_most = absl::ToTimespec(time);
  return sigtimedwait(&set, nullptr, &at_most) >= 0;
}

void ExitNow(int code) {
  spdlog::default_logger()->flush();
  _exit(code);
}

StopsAtOnce::StopsAtOnce(std::string said, int exit_code, absl::Duration deaf)
    : thread_("stop-signals", [this, said = std::move(said), exit_code, deaf] {
        const SteadyClock clock;
        const absl::Time hears = clock.Now() + deaf;
        while (!over_) {
          if (!StopSignalWithin(absl::Milliseconds(20)) || clock.Now() < hears) continue;
          spdlog::info("{}", said);
          ExitNow(exit_code);
        }
      }) {}

StopsAtOnce::~StopsAtOnce() { over_ = true; }

}  // namespace sluice
