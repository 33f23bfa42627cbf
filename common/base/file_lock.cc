#include "common/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  auto failed = [&](const char* doing) {
    const int error = errno;
    return absl::Status(absl::ErrnoToStatusCode(error),
                        absl::StrCat(path, ": ", doing, ": ", std::strerror(error)));
  };
  const int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return failed("open");
  FileLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return failed("lock");
    char holder[32] = {};
    if (read(fd, holder, sizeof(holder) - 1) <= 0) std::strcpy(holder, "(unknown)");
    return absl::FailedPreconditionError(absl::StrCat(path, " is held by process ", holder));
  }
  const std::string own = absl::StrCat(getpid());
  if (ftruncate(fd, 0) != 0 || write(fd, own.data(), own.size()) != static_cast<ssize_t>(own.size()))
    return failed("write");
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace sluice
