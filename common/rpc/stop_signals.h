// Role: SIGINT and SIGTERM of a server: blocked in all threads, taken by one that waits for them.
// Threads: BlockStopSignals before there are others; the rest any.
#pragma once

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "common/base/thread.h"

namespace sluice {

// Blocks SIGINT and SIGTERM in this thread and those it starts: call it first in main.
void BlockStopSignals();
// Waits for SIGINT or SIGTERM.
void WaitForStopSignal();
// False: none came.
bool StopSignalWithin(absl::Duration time);

// Ends the process without joining threads.
[[noreturn]] void ExitNow(int code);

// While one lives, SIGINT or SIGTERM ends the process, whatever its threads are doing: for what cannot be cut
// short, such as loading a model. Needs BlockStopSignals.
class StopsAtOnce {
 public:
  // deaf: signals come in pairs where a terminal and a supervisor send one each; for so long they count as
  // one.
  StopsAtOnce(std::string said, int exit_code, absl::Duration deaf = absl::ZeroDuration());
  ~StopsAtOnce();

 private:
  std::atomic<bool> over_{false};
  NamedThread thread_;
};

}  // namespace sluice
