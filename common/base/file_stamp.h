// Role: tells whether a file has changed since it was read: replaced, rewritten, or behind a symbolic link
// that was turned. Threads: pure function.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

struct FileStamp {
  uint64_t inode = 0;
  int64_t modified_ns = 0;
  int64_t bytes = -1;  // -1: not there
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
FileStamp StampOf(const std::string& path);

}  // namespace sluice
