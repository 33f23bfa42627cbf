// Role: the processes that `sluice up` starts: each with a log of its own, all stopped together.
// Why: they must not outlive `up`, whatever ends it: PR_SET_PDEATHSIG kills them with the thread that started
// them. Each is a process group of its own, so that Ctrl-C of the terminal reaches `up` alone.
// Threads: one, which must live as long as the children.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice {

struct ChildSpec {
  std::string name;  // for people: "router"
  std::string path;  // of the program
  std::vector<std::string> args;
  std::string log;  // file of its stdout and stderr, written anew
};

struct ChildExit {
  std::string name;
  std::string log;
  int wait_status = 0;  // as waitpid tells it
};
// "exited with code 1", "was killed by signal 9".
std::string DescribeExit(int wait_status);

class ChildProcesses {
 public:
  ChildProcesses() = default;
  // Kills those that are left.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // NotFound if the program cannot run.
  absl::Status Start(const ChildSpec& spec);
  // A child that has ended since the last call; it is no longer one of ours.
  std::optional<ChildExit> PollExit();
  // SIGTERM to all, SIGKILL to those that still run after `grace`. Returns those that another signal than
  // SIGTERM ended: the killed and the crashed.
  std::vector<ChildExit> Stop(absl::Duration grace);

  std::vector<pid_t> pids() const;

 private:
  struct Child {
    pid_t pid;
    std::string name;
    std::string log;
  };
  std::vector<Child> children_;
};

// The last `lines` lines of a file; empty if it cannot be read.
std::string TailOf(const std::string& path, int lines);

}  // namespace sluice
