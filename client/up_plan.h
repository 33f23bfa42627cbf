// Role: what `sluice up` will start: ports, log files, command lines. Threads: pure functions, but for the
// look at ports and directories.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/child_processes.h"

namespace sluice {

inline constexpr char kUpHost[] = "127.0.0.1";
inline constexpr int kDefaultPortBase = 7100;
inline constexpr char kDefaultModel[] = "models/needle-14m";

struct UpOptions {
  std::string model;
  // "auto": PlanDevices; else as the servers' --device.
  std::string prefill_device = "auto", decode_device = "auto";
  int threads = 0;  // of each worker; 0: half the cores
  int port_base = kDefaultPortBase;
  std::string transport = "ucx";
  std::string log_dir;      // empty: a new one under /tmp
  std::string sessions_db;  // empty: in log_dir
  int kv_memory_mb = 1024, history_memory_mb = 1024, work_memory_mb = 2048;
  double shadow_rate = 0;  // share of compressed prompts on which prefill measures what compression lost
  std::string bin_dir;     // of the servers
};

// Offsets from port_base.
enum UpPortIndex {
  kRouterPublic,
  kRouterInternal,
  kRouterAdmin,
  kRouterMetrics,
  kPrefillMetrics,
  kDecodeMetrics,
  kPrefillListen,
  kDecodeListen,
  kRouterHttp,
  kUpPorts
};
const char* UpPortUse(int index);  // "metrics of the router"
std::string UpAddress(int port_base, int index);

// Whether nobody listens on the port.
bool PortIsFree(int port);
// Unavailable names the port, its use and --port-base.
absl::Status CheckPortsFree(int port_base);

// Puts devices where `options` has "auto": the CPU without a GPU, the one GPU for both, or else one each.
void PlanDevices(int n_gpus, UpOptions* options);

// Half the cores that this process may run on, at least 1.
int DefaultThreads();
// The model of the repository where it is there, else empty.
std::string DefaultModel();

// What a server's log says, with the flags of `up` in the place of the server's own.
std::string InTermsOfUp(const std::string& role, const std::string& log);

// Router, prefill, decode: in the order in which they start. Every path of `options` is set.
std::vector<ChildSpec> PlanChildren(const UpOptions& options);

}  // namespace sluice
