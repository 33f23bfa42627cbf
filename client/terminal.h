// Role: a progress bar of one line. Why a pure function: what a person sees is tested as text.
// Threads: one.
#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// "label [#####-----]  50 %". fraction is cut to [0, 1]; cells: width of the bar between its brackets.
std::string RenderProgress(absl::string_view label, double fraction, int cells);

// Draws on a terminal, over its own last line; says nothing where `tty` is false. Clears itself at the end.
class ProgressBar {
 public:
  ProgressBar(std::ostream* out, bool tty) : out_(out), tty_(tty) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Show(absl::string_view label, double fraction);
  void Clear();

 private:
  std::ostream* const out_;
  const bool tty_;
  std::string shown_;
};

}  // namespace sluice
