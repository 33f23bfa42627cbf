#include "kernels/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

size_t ReadNumber(const std::string& path, size_t otherwise) {
  std::ifstream file(path);
  std::string text;
  uint64_t value;
  return file >> text && absl::SimpleAtoi(text, &value) ? value : otherwise;  // "max" is no number
}

// The folder of this process's cgroup below `root`/sys/fs/cgroup, e.g. "/user.slice"; v1 has a line of its
// own.
std::string CgroupPath(const std::string& root, bool v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : controllers == "memory") return line.substr(second + 1);
  }
  return "";
}

struct Limit {
  size_t bytes = kNoLimit, used = 0;
};

Limit ReadLimit(const std::string& folder, const char* limit, const char* used) {
  return {ReadNumber(folder + limit, kNoLimit), ReadNumber(folder + used, 0)};
}

// The tightest limit from our cgroup up to the root: every level counts.
void ApplyLimits(const std::string& base, std::string path, const char* limit, const char* used,
                 DeviceMemory* memory) {
  while (true) {
    Limit l = ReadLimit(base + path, limit, used);
    if (l.bytes < memory->total_bytes) memory->total_bytes = l.bytes;
    if (l.bytes != kNoLimit)
      memory->available_bytes = std::min(memory->available_bytes, l.bytes - std::min(l.bytes, l.used));
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<Buffer> AllocateCpuMemory(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, std::max<size_t>(bytes, 1)) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("cpu memory: cannot allocate ", bytes, " bytes"));
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a refusal costs speed only
  return Buffer(data, bytes, [](void* p) { std::free(p); });
}

DeviceMemory ReadCpuMemory(const std::string& root) {
  DeviceMemory memory;
  std::ifstream meminfo(root + "/proc/meminfo");
  std::string key, unit;
  for (size_t kib; meminfo >> key >> kib; std::getline(meminfo, unit)) {
    if (key == "MemTotal:") memory.total_bytes = kib << 10;
    if (key == "MemAvailable:") memory.available_bytes = kib << 10;
  }
  ApplyLimits(root + "/sys/fs/cgroup", CgroupPath(root, true), "/memory.max", "/memory.current", &memory);
  ApplyLimits(root + "/sys/fs/cgroup/memory", CgroupPath(root, false), "/memory.limit_in_bytes",
              "/memory.usage_in_bytes", &memory);
  return memory;
}

}  // namespace sluice
