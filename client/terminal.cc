#include "client/terminal.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

constexpr int kCells = 32;
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

std::string RenderProgress(absl::string_view label, double fraction, int cells) {
  // NaN compares false and becomes 0.
  fraction = fraction > 0 ? std::min(fraction, 1.0) : 0.0;
  const int full = static_cast<int>(std::floor(fraction * cells));
  return absl::StrCat(label, " [", std::string(full, '#'), std::string(cells - full, '-'), "] ",
                      absl::StrFormat("%3d %%", static_cast<int>(std::floor(fraction * 100))));
}

void ProgressBar::Show(absl::string_view label, double fraction) {
  if (!tty_) return;
  std::string line = RenderProgress(label, fraction, kCells);
  if (line == shown_) return;
  *out_ << kClearLine << line << std::flush;
  shown_ = std::move(line);
}

void ProgressBar::Clear() {
  if (shown_.empty()) return;
  *out_ << kClearLine << std::flush;
  shown_.clear();
}

}  // namespace sluice
