#include "client/child_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

// Between fork and exec only async-signal-safe calls are allowed. Sends errno where exec fails.
[[noreturn]] void BecomeChild(const char* path, char* const* argv, int log_fd, int null_fd, pid_t parent,
                              int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (dup2(null_fd, 0) >= 0 && dup2(log_fd, 1) >= 0 && dup2(log_fd, 2) >= 0) execv(path, argv);
  const int error = errno;
  [[maybe_unused]] ssize_t sent = write(error_fd, &error, sizeof(error));
  _exit(127);
}

absl::Status Errno(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) return absl::StrCat("was killed by signal ", WTERMSIG(wait_status));
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status));
}

ChildProcesses::~ChildProcesses() { Stop(absl::ZeroDuration()); }

absl::Status ChildProcesses::Start(const ChildSpec& spec) {
  Fd log{open(spec.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644)};
  if (log.fd < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", spec.log, ": ", std::strerror(errno),
                                                   "; choose another directory with --log-dir"));
  }
  Fd null{open("/dev/null", O_RDONLY | O_CLOEXEC)};
  int ends[2];
  if (null.fd < 0 || pipe2(ends, O_CLOEXEC) != 0) return Errno("pipe");
  Fd error_reader{ends[0]};
  std::vector<char*> argv{const_cast<char*>(spec.path.c_str())};
  for (const std::string& arg : spec.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(spec.path.c_str(), argv.data(), log.fd, null.fd, parent, ends[1]);
  close(ends[1]);
  if (pid < 0) return Errno("fork");
  int error = 0;
  ssize_t count;
  do {
    count = read(error_reader.fd, &error, sizeof(error));  // ends when exec closes the pipe
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    return absl::NotFoundError(absl::StrCat("cannot run ", spec.path, ": ", std::strerror(error)));
  }
  children_.push_back({pid, spec.name, spec.log});
  return absl::OkStatus();
}

std::optional<ChildExit> ChildProcesses::PollExit() {
  for (auto it = children_.begin(); it != children_.end(); ++it) {
    int wait_status = 0;
    if (waitpid(it->pid, &wait_status, WNOHANG) != it->pid) continue;
    ChildExit exit{it->name, it->log, wait_status};
    children_.erase(it);
    return exit;
  }
  return std::nullopt;
}

std::vector<ChildExit> ChildProcesses::Stop(absl::Duration grace) {
  for (const Child& child : children_) kill(child.pid, SIGTERM);
  std::vector<ChildExit> badly;
  const absl::Time end = absl::Now() + grace;
  while (!children_.empty() && absl::Now() < end) {
    std::optional<ChildExit> exit = PollExit();
    if (!exit.has_value()) {
      absl::SleepFor(absl::Milliseconds(20));
    } else if (WIFSIGNALED(exit->wait_status) && WTERMSIG(exit->wait_status) != SIGTERM) {
      badly.push_back(*std::move(exit));
    }
  }
  for (const Child& child : children_) {
    int wait_status = 0;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, &wait_status, 0);
    badly.push_back({child.name, child.log, wait_status});
  }
  children_.clear();
  return badly;
}

std::vector<pid_t> ChildProcesses::pids() const {
  std::vector<pid_t> pids;
  for (const Child& child : children_) pids.push_back(child.pid);
  return pids;
}

std::string TailOf(const std::string& path, int lines) {
  std::ifstream file(path);
  std::deque<std::string> tail;
  for (std::string line; std::getline(file, line);) {
    tail.push_back(line);
    if (static_cast<int>(tail.size()) > lines) tail.pop_front();
  }
  return absl::StrJoin(tail, "\n");
}

}  // namespace sluice
