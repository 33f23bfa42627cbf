// Role: what the two worker processes share: flags, the model with its progress, identities, the wait for a
// signal. Threads: main.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/handoff/compatibility.h"
#include "common/model/ranked_model.h"
#include "common/rpc/process_flags.h"
#include "common/rpc/router_links.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/tls_flags.h"
#include "common/transport/kv_transport.h"
#include "kernels/backend.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

struct WorkerOptions {
  std::string model;       // HF directory or GGUF file
  std::string model_name;  // as clients call it; default: the directory's name
  std::string name;        // of this worker
  std::vector<std::string> routers = {"127.0.0.1:7101"};
  std::string listen = "127.0.0.1:0";
  std::string advertise;  // host of the address that others dial; default: the host of `listen`
  std::string metrics_listen = "127.0.0.1:0";
  InternalTls tls;
  std::string transport = "ucx";
  std::string ucx_tls;
  std::string device = "auto";
  std::string isa = "auto";
  int threads = 0;
  int tensor_parallel = 1;  // ranks of the model
  int ring_slots = 8;
  int slot_kib = 0;  // 0: SlotBytes chooses
  int stop_seconds = 10;
  int device_seconds = 120;  // longer waits for a GPU end the process
  std::string log_level = "info";
};

// With those of AddProcessFlags.
void AddWorkerFlags(CLI::App* app, WorkerOptions* options);

// The model's name where none was given: what metrics and LoadWorkerModel take.
absl::Status NameModel(WorkerOptions* options);

// A model on a backend with everything that names it.
struct LoadedModel {
  std::unique_ptr<BackendGroup> group;
  std::unique_ptr<RankedModel> model;
  internal::v1::ModelIdentity identity;
  Compatibility compatibility;
};

// progress: 0..1. Errors name the flag to change.
absl::StatusOr<LoadedModel> LoadWorkerModel(const WorkerOptions& options,
                                            std::function<void(double)> progress);

// backend: outlives the transport.
absl::StatusOr<std::unique_ptr<KvTransport>> MakeWorkerTransport(const WorkerOptions& options,
                                                                 Backend* backend);

// Of --slot-kib, or what suits the transport: a few large messages are the fastest between GPUs.
size_t SlotBytes(const WorkerOptions& options, const KvTransport& transport);

// host:port that others dial.
std::string DialAddress(const WorkerOptions& options, int port);

// Waits for SIGINT or SIGTERM. DeadlineExceeded: a device has not answered for --device-timeout.
absl::Status WaitForStopSignal(const WorkerOptions& options, const BackendGroup& group);
// The end that a signal asks for, within --stop-timeout: no new requests, those under way to their end, then
// the routers forget this worker and its server stops.
void StopServing(const char* role, const WorkerOptions& options, RouterLinks* routers, RpcServer* server);
// Ends the process at once: threads that wait for a device cannot be joined. Its lease lapses, its peers see
// their connections end.
[[noreturn]] void ExitHung(const char* role, const absl::Status& why);

}  // namespace sluice
