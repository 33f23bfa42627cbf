#include "common/base/random_id.h"

#include <sys/random.h>

#include <chrono>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

std::string RandomBytes(size_t n) {
  std::string bytes(n, '\0');
  SLUICE_CHECK(getrandom(bytes.data(), n, 0) == static_cast<ssize_t>(n));
  return bytes;
}

}  // namespace

std::string RandomId128() { return absl::BytesToHexString(RandomBytes(16)); }

std::string UuidV7() {
  std::string b = RandomBytes(16);
  uint64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count();
  for (int i = 0; i < 6; ++i) b[i] = static_cast<char>(ms >> (8 * (5 - i)));
  b[6] = static_cast<char>((b[6] & 0x0f) | 0x70);
  b[8] = static_cast<char>((b[8] & 0x3f) | 0x80);
  std::string hex = absl::BytesToHexString(b);
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

}  // namespace sluice
