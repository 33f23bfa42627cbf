#include "common/metrics/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace sluice {
namespace {

// Fields of /proc/self/stat after the command name, which may hold blanks and parentheses; fields[0] is
// number 3 of proc(5).
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::vector<std::string> fields;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(line.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    double value = 0;
    if (words >> key >> value && key == "btime") return value;
  }
  return 0;
}

double CountOpenFds() {
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count - 1;  // without the one that reads the directory
}

// /proc/self/net/netstat holds pairs of lines: "IpExt: <names>", "IpExt: <values>".
std::optional<NetworkStats> ReadNetwork() {
  std::ifstream file("/proc/self/net/netstat");
  std::string names, values;
  while (std::getline(file, names) && std::getline(file, values)) {
    std::istringstream name_words(names), value_words(values);
    std::string name;
    value_words >> name;
    if (!(name_words >> name) || name != "IpExt:") continue;
    std::optional<double> in, out;
    for (double value = 0; name_words >> name && value_words >> value;) {
      if (name == "InOctets") in = value;
      if (name == "OutOctets") out = value;
    }
    if (in.has_value() && out.has_value()) return NetworkStats{*in, *out};
  }
  return std::nullopt;
}

double MaxFds() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<double>(limit.rlim_cur) : 0;
}

}  // namespace

absl::StatusOr<ProcessStats> ReadProcessStats() {
  const std::vector<std::string> fields = StatFields();
  const double boot_time = BootTimeSeconds();
  constexpr size_t kUserTime = 14 - 3, kSystemTime = 15 - 3, kStartTime = 22 - 3, kResidentPages = 24 - 3;
  if (fields.size() <= kResidentPages || boot_time == 0) {
    return absl::UnavailableError("/proc/self/stat or /proc/stat cannot be read");
  }
  auto number = [&](size_t field) { return std::strtod(fields[field].c_str(), nullptr); };
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessStats stats;
  stats.resident_memory_bytes = number(kResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE));
  stats.cpu_seconds = (number(kUserTime) + number(kSystemTime)) / ticks_per_second;
  stats.open_fds = CountOpenFds();
  stats.max_fds = MaxFds();
  stats.network = ReadNetwork();
  stats.start_time_seconds = boot_time + number(kStartTime) / ticks_per_second;
  return stats;
}

}  // namespace sluice
