#include "common/text/byte_alphabet.h"

#include <array>

#include "common/text/unicode.h"

namespace sluice {
namespace {

// Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 on, in order.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// byte_of[code point], -1 outside the alphabet.
constexpr std::array<int16_t, 0x144> MakeTable() {
  std::array<int16_t, 0x144> byte_of{};
  for (auto& b : byte_of) b = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) byte_of[StandsForItself(byte) ? byte : next++] = byte;
  return byte_of;
}
constexpr auto kByteOf = MakeTable();

}  // namespace

std::optional<std::string> BytesOfAlphabetText(absl::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    Utf8Step step = NextUtf8(token);
    if (step.kind != Utf8Step::kValid || step.code_point >= kByteOf.size() || kByteOf[step.code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[step.code_point]));
    token.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace sluice
