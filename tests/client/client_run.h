// Role: runs the sluice command in this process and keeps what it wrote. Threads: Run in one, the texts in
// any.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "client/command_line.h"
#include "common/base/status.h"
#include "common/rpc/stop_signals.h"
#include "tests/client/shared_text.h"

namespace sluice {

class ClientRun {
 public:
  // Signals that a test sends must not meet a thread of gRPC's that does not block them.
  ClientRun() {
    BlockStopSignals();
    SLUICE_CHECK(pipe(pipe_) == 0);
  }
  ~ClientRun() {
    close(pipe_[0]);
    CloseInput();
  }
  ClientRun(const ClientRun&) = delete;
  ClientRun& operator=(const ClientRun&) = delete;

  void Type(const std::string& text) {
    SLUICE_CHECK(write(pipe_[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void CloseInput() {
    if (pipe_[1] >= 0) close(pipe_[1]);
    pipe_[1] = -1;
  }

  Console console() { return {pipe_[0], out_.stream(), err_.stream(), in_tty, out_tty, err_tty}; }

  // The words after "sluice".
  int Run(const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"sluice"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    return RunCommandLine(static_cast<int>(argv.size()), argv.data(), console());
  }

  std::string out() const { return out_.text(); }
  std::string err() const { return err_.text(); }
  const SharedText& out_text() const { return out_; }
  const SharedText& err_text() const { return err_; }

  bool in_tty = false, out_tty = false, err_tty = false;

 private:
  int pipe_[2];
  SharedText out_, err_;
};

}  // namespace sluice
