#include "client/console.h"

#include <unistd.h>

#include <iostream>

namespace sluice {

Console ProcessConsole() {
  return {STDIN_FILENO,
          &std::cout,
          &std::cerr,
          isatty(STDIN_FILENO) == 1,
          isatty(STDOUT_FILENO) == 1,
          isatty(STDERR_FILENO) == 1};
}

std::string PrintableText(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) continue;
    // U+0080 to U+009F, the control characters of the upper half.
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      ++i;
      continue;
    }
    out.push_back(text[i]);
  }
  return out;
}

std::string TextFor(const Console& console, absl::string_view text) {
  return console.out_tty ? PrintableText(text) : std::string(text);
}

}  // namespace sluice
