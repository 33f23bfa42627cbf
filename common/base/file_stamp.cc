#include "common/base/file_stamp.h"

#include <sys/stat.h>

namespace sluice {

FileStamp StampOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_ino, found.st_mtim.tv_sec * int64_t{1'000'000'000} + found.st_mtim.tv_nsec, found.st_size};
}

}  // namespace sluice
