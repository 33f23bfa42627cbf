#include "client/up_plan.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sluice {
namespace {

// Shorter than the grace that `up` gives, so that a server ends its requests itself.
constexpr int kServerStopSeconds = 3;

ChildSpec Plan(const UpOptions& options, const std::string& role, std::vector<std::string> args) {
  return {role, absl::StrCat(options.bin_dir, "/sluice-", role), std::move(args),
          absl::StrCat(options.log_dir, "/", role, ".log")};
}

ChildSpec PlanWorker(const UpOptions& options, const std::string& role, const std::string& device, int listen,
                     int metrics, std::vector<std::string> memory) {
  std::vector<std::string> args = {"--model",          options.model,
                                   "--device",         device,
                                   "--threads",        absl::StrCat(options.threads),
                                   "--transport",      options.transport,
                                   "--router",         UpAddress(options.port_base, kRouterInternal),
                                   "--listen",         UpAddress(options.port_base, listen),
                                   "--metrics-listen", UpAddress(options.port_base, metrics),
                                   "--stop-timeout",   absl::StrCat(kServerStopSeconds)};
  args.insert(args.end(), memory.begin(), memory.end());
  return Plan(options, role, std::move(args));
}

}  // namespace

const char* UpPortUse(int index) {
  constexpr const char* kUses[kUpPorts] = {
      "public port of the router",  "internal port of the router", "admin port of the router",
      "metrics of the router",      "metrics of prefill",          "metrics of decode",
      "prefill's port for workers", "decode's port for workers",   "HTTP port of the router"};
  return kUses[index];
}

std::string UpAddress(int port_base, int index) { return absl::StrCat(kUpHost, ":", port_base + index); }

bool PortIsFree(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int yes = 1;  // as servers do: a port that only lingers counts as free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, kUpHost, &address.sin_addr);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

absl::Status CheckPortsFree(int port_base) {
  for (int i = 0; i < kUpPorts; ++i) {
    if (PortIsFree(port_base + i)) continue;
    return absl::UnavailableError(
        absl::StrCat("port ", port_base + i, " (", UpPortUse(i),
                     ") is taken; choose another range with --port-base, which needs ",
                     static_cast<int>(kUpPorts), " free ports"));
  }
  return absl::OkStatus();
}

void PlanDevices(int n_gpus, UpOptions* options) {
  const auto gpu = [n_gpus](int role) -> std::string {
    return n_gpus == 0 ? "cpu" : absl::StrCat("cuda:", std::min(role, n_gpus - 1));
  };
  if (options->prefill_device == "auto") options->prefill_device = gpu(0);
  if (options->decode_device == "auto") options->decode_device = gpu(1);
}

int DefaultThreads() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, cores / 2);
}

std::string DefaultModel() {
  std::error_code ignored;
  return std::filesystem::exists(kDefaultModel, ignored) ? kDefaultModel : "";
}

std::string InTermsOfUp(const std::string& role, const std::string& log) {
  // The longest match counts: what `up` has no flag for stays.
  std::vector<std::pair<std::string, std::string>> own = {{"--device", absl::StrCat("--", role, "-device")},
                                                          {"--device-timeout", "--device-timeout"}};
  for (const char* address :
       {"--router", "--listen", "--http-listen", "--internal-listen", "--admin-listen", "--metrics-listen"})
    own.emplace_back(address, "--port-base");
  return absl::StrReplaceAll(log, own);
}

std::vector<ChildSpec> PlanChildren(const UpOptions& options) {
  const int base = options.port_base;
  return {
      Plan(options, "router",
           {"--model", options.model, "--listen", UpAddress(base, kRouterPublic), "--http-listen",
            UpAddress(base, kRouterHttp), "--internal-listen", UpAddress(base, kRouterInternal),
            "--admin-listen", UpAddress(base, kRouterAdmin), "--metrics-listen",
            UpAddress(base, kRouterMetrics), "--sessions-db", options.sessions_db, "--stop-timeout",
            absl::StrCat(kServerStopSeconds)}),
      PlanWorker(options, "prefill", options.prefill_device, kPrefillListen, kPrefillMetrics,
                 {"--history-memory", absl::StrCat(options.history_memory_mb), "--work-memory",
                  absl::StrCat(options.work_memory_mb), "--shadow-rate", absl::StrCat(options.shadow_rate)}),
      PlanWorker(options, "decode", options.decode_device, kDecodeListen, kDecodeMetrics,
                 {"--kv-memory", absl::StrCat(options.kv_memory_mb)})};
}

}  // namespace sluice
