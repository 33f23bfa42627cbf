// Role: a claim on a file name by one process at a time. Why: the kernel drops it when its holder dies,
// however it dies. The file holds the holder's process id and stays. Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

class FileLock {
 public:
  // Makes the file if it is not there. FailedPrecondition names the file and the process that has it.
  static absl::StatusOr<FileLock> Take(const std::string& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace sluice
