// Role: the other end of a transport under test: a process of its own, so that it can be killed. Threads: the
// test's.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/kv_transport.h"

extern char** environ;

namespace sluice {

constexpr absl::Duration kPeerPatience = absl::Seconds(60);

// A transport_peer process with its stdin and stdout.
class PeerProcess {
 public:
  PeerProcess(const std::string& transport, const std::string& device) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    for (int fd : {in[0], in[1], out[0], out[1]}) posix_spawn_file_actions_addclose(&actions, fd);
    std::string name = transport, where = device;
    char* argv[] = {const_cast<char*>("transport_peer"), name.data(), where.data(), nullptr};
    if (posix_spawn(&pid_, SLUICE_TRANSPORT_PEER, &actions, nullptr, argv, environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~PeerProcess() {
    Kill();
    close(in_);
    close(out_);
  }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Say(const std::string& line) {
    std::string text = line + "\n";
    SLUICE_CHECK(write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // One line, while `progress` drives our side: the other end may need it.
  std::string Hear(KvTransport* progress) {
    absl::Time end = SteadyClock().Now() + kPeerPatience;
    for (std::string line; SteadyClock().Now() < end;) {
      progress->Progress();
      fd_set set;
      FD_ZERO(&set);
      FD_SET(out_, &set);
      timeval none = {};
      if (select(out_ + 1, &set, nullptr, nullptr, &none) <= 0) continue;
      char c;
      if (read(out_, &c, 1) != 1) return "(end)";
      if (c == '\n') return line;
      line += c;
    }
    return "(silence)";
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1, out_ = -1;
};

}  // namespace sluice
