#include "common/transport/process_mark.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct ProcessState {
  char state = 0;                   // 0: there is no such process
  std::string threads, start_time;  // start: in ticks since the boot
};

// /proc/<pid>/stat: "pid (name) state ... ", the start time is field 22, threads are 20. A name may hold
// anything.
ProcessState StateOf(const std::string& pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  if (fields.size() < 20) return {};
  return {fields[0][0], fields[17], fields[19]};
}

// Where process ids mean the same.
const std::string& Scope() {
  static const std::string* scope = [] {
    std::string boot = ReadFile("/proc/sys/kernel/random/boot_id");
    if (!boot.empty()) boot.pop_back();
    char space[64] = {};
    if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) boot.clear();
    return new std::string(boot.empty() ? "" : absl::StrCat(boot, " ", space));
  }();
  return *scope;
}

}  // namespace

std::string ProcessMark() {
  const std::string pid = absl::StrCat(getpid());
  return absl::StrCat(Scope(), " ", pid, " ", StateOf(pid).start_time);
}

bool OfThisHost(absl::string_view mark) {
  const size_t boot = Scope().find(' ');
  return boot != std::string::npos &&
         mark.substr(0, boot + 1) == absl::string_view(Scope()).substr(0, boot + 1);
}

bool ProcessIsGone(absl::string_view mark) {
  const std::vector<std::string> parts = absl::StrSplit(mark, ' ');
  int64_t pid = 0;
  if (parts.size() != 4 || absl::StrCat(parts[0], " ", parts[1]) != Scope() ||
      !absl::SimpleAtoi(parts[2], &pid))
    return false;
  if (pid == getpid()) return true;
  const ProcessState now = StateOf(parts[2]);
  if (now.state == 0 || now.state == 'X' || now.start_time != parts[3]) return true;
  // A zombie has given back everything but its exit status, unless only its first thread is one.
  return now.state == 'Z' && (now.threads == "0" || now.threads == "1");
}

}  // namespace sluice
