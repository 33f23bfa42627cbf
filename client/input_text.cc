#include "client/input_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

}  // namespace

absl::Status CheckText(absl::string_view source, absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": empty; give it some text"));
  if (auto at = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": byte ", *at, " is not UTF-8; convert the text, for example with iconv"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFd(absl::string_view source, int fd) {
  std::string text;
  char bytes[1 << 16];
  while (true) {
    ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count == 0) break;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::InvalidArgumentError(absl::StrCat(source, ": ", std::strerror(errno)));
    text.append(bytes, count);
    if (text.size() > kMaxTextBytes)
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": more than ", kMaxTextBytes >> 20, " MiB; no model reads that much"));
  }
  SLUICE_RETURN_IF_ERROR(CheckText(source, text));
  return text;
}

absl::StatusOr<std::string> ReadTextFile(absl::string_view source, const std::string& path) {
  const std::string name = absl::StrCat(source, " ", path);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(name, ": ", std::strerror(errno)));
  absl::StatusOr<std::string> text = ReadTextFd(name, fd);
  close(fd);
  return text;
}

}  // namespace sluice
