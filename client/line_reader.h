// Role: lines from stdin that Ctrl-C can interrupt. Threads: one.
#pragma once

#include <string>

#include "client/interrupts.h"

namespace sluice {

class LineReader {
 public:
  enum Result { kLine, kEnd, kInterrupted };

  // Both outlive the reader.
  LineReader(int fd, Interrupts* interrupts) : fd_(fd), interrupts_(interrupts) {}

  // kLine: `line` without its line feed; the last line needs none. kInterrupted: a half typed line is
  // dropped.
  Result Read(std::string* line);
  // The signal behind the last kInterrupted.
  int signal() const { return signal_; }

 private:
  const int fd_;
  Interrupts* const interrupts_;
  std::string buffer_;
  bool ended_ = false;
  int signal_ = 0;
};

}  // namespace sluice
