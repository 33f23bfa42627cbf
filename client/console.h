// Role: where a command reads and writes, so that tests drive the whole command line without a terminal.
// Threads: the command's own.
#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

struct Console {
  int in_fd = 0;
  std::ostream* out;  // answers and lists: what a pipe should carry
  std::ostream* err;  // prompts, progress, statistics, errors
  bool in_tty = false;
  bool out_tty = false;
  bool err_tty = false;
};

// The process's own three streams.
Console ProcessConsole();

// Text for a terminal: without control characters other than line feed and tab, so that what a model or a
// stored session says cannot move the cursor or rename the window. `text` is valid UTF-8.
std::string PrintableText(absl::string_view text);

// As PrintableText where `out` is a terminal, unchanged elsewhere.
std::string TextFor(const Console& console, absl::string_view text);

}  // namespace sluice
