#include "common/rpc/worker_process.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/model/model_dir.h"
#include "common/rpc/stop_signals.h"
#include "common/transport/transports.h"
#include "kernels/make_backend.h"

namespace sluice {

void AddWorkerFlags(CLI::App* app, WorkerOptions* options) {
  AddProcessFlags(app, &options->log_level);
  auto add = [app](const char* flag, auto& value, const char* help, const char* env, const char* group) {
    return app->add_option(flag, value, help)->envname(env)->group(group)->capture_default_str();
  };
  add("--model", options->model, "Hugging Face directory or GGUF file", "SLUICE_MODEL", "Model")->required();
  add("--model-name", options->model_name, "name that clients use (default: the directory's)",
      "SLUICE_MODEL_NAME", "Model");
  add("--device", options->device, "auto (the first GPU, or else the CPU), cpu, cuda, cuda:<index>",
      "SLUICE_DEVICE", "Model");
  add("--tensor-parallel-size", options->tensor_parallel,
      "devices that share the model: the GPU of --device and those after it (NCCL), or CPU ranks; divides "
      "the model's KV heads",
      "SLUICE_TENSOR_PARALLEL_SIZE", "Model")
      ->check(CLI::Range(1, 64));
  add("--threads", options->threads, "CPU threads for the model; 0: one per core", "SLUICE_THREADS", "Model")
      ->check(CLI::Range(0, 1024));
  add("--isa", options->isa, "instruction set: auto, avx2, avx512, avx512_bf16", "SLUICE_ISA", "Model");
  add("--name", options->name, "name of this worker (default: role and process id)", "SLUICE_WORKER_NAME",
      "Network");
  add("--router", options->routers, "internal addresses of every router, host:port, comma-separated",
      "SLUICE_ROUTER", "Network")
      ->delimiter(',')
      ->check([](const std::string& address) {
        return std::string(CheckHostPort("--router", address).message());
      });
  add("--listen", options->listen, "own address, host:port; port 0 takes a free one", "SLUICE_LISTEN",
      "Network");
  add("--advertise", options->advertise, "host that others dial (default: the host of --listen)",
      "SLUICE_ADVERTISE", "Network");
  add("--metrics-listen", options->metrics_listen, "address of /metrics", "SLUICE_METRICS_LISTEN", "Network");
  AddInternalTlsFlags(app, &options->tls);
  add("--stop-timeout", options->stop_seconds,
      "seconds that running requests get at shutdown, which drains first", "SLUICE_STOP_TIMEOUT", "Network")
      ->check(CLI::Range(0, 3600));
  add("--device-timeout", options->device_seconds,
      "a GPU that does not answer for so many seconds ends the process, so that the router uses another",
      "SLUICE_DEVICE_TIMEOUT", "Model")
      ->check(CLI::Range(1, 86400));
  add("--transport", options->transport,
      absl::StrCat("one of ", absl::StrJoin(ProcessTransportNames(), ", ")).c_str(), "SLUICE_TRANSPORT",
      "Hand-off")
      ->check(CLI::IsMember(ProcessTransportNames()));
  add("--ucx-tls", options->ucx_tls,
      "UCX transports, comma-separated (default: tcp, and between GPUs of one host cuda_ipc)",
      "SLUICE_UCX_TLS", "Hand-off");
  add("--ring-slots", options->ring_slots, "slots of a ring", "SLUICE_RING_SLOTS", "Hand-off")
      ->check(CLI::Range(1, 1024));
  add("--slot-kib", options->slot_kib, "KiB of a slot; 0: 1024, or 16384 where slots are GPU memory",
      "SLUICE_SLOT_KIB", "Hand-off")
      ->check(CLI::Range(0, 1 << 20));
}

absl::Status NameModel(WorkerOptions* options) {
  if (!options->model_name.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(ModelShape shape, OpenShape(options->model));
  options->model_name = shape.name;
  return absl::OkStatus();
}

absl::StatusOr<LoadedModel> LoadWorkerModel(const WorkerOptions& options,
                                            std::function<void(double)> progress) {
  CpuOptions cpu;
  cpu.threads = options.threads;
  if (options.isa != "auto") {
    SLUICE_ASSIGN_OR_RETURN(cpu.isa, ParseCpuIsa(options.isa));
  }
  LoadedModel loaded;
  const std::string ranks = options.tensor_parallel == 1
                                ? ""
                                : absl::StrCat("--tensor-parallel-size ", options.tensor_parallel, ": ");
  absl::StatusOr<std::unique_ptr<BackendGroup>> group =
      MakeBackendGroup(options.device, cpu, options.tensor_parallel);
  if (!group.ok()) {
    return absl::Status(group.status().code(),
                        absl::StrCat("--device ", options.device, ": ", ranks, group.status().message()));
  }
  loaded.group = *std::move(group);
  SLUICE_ASSIGN_OR_RETURN(ModelFiles files, OpenModel(options.model));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(options.model));
  LoadOptions load;
  load.progress = std::move(progress);
  absl::StatusOr<std::unique_ptr<RankedModel>> model =
      RankedModel::Load(files.shape, files.weights, loaded.group.get(), load);
  if (!model.ok()) return absl::Status(model.status().code(), absl::StrCat(ranks, model.status().message()));
  loaded.model = *std::move(model);

  const ModelShape& shape = loaded.model->shape();
  internal::v1::ModelIdentity& id = loaded.identity;
  id.set_name(options.model_name);
  id.set_weights_hash(WeightsHash(files));
  id.set_tokenizer_hash(tokenizer->hash());
  id.set_rope_hash(RopeHash(shape));
  id.set_kv_dtype("bf16");
  id.set_layers(shape.n_layers);
  id.set_q_heads(shape.n_q_heads);
  id.set_kv_heads(shape.n_kv_heads);
  id.set_head_dim(shape.head_dim);
  id.set_vocabulary(shape.vocab);
  id.set_context(shape.context);
  loaded.compatibility = {id.weights_hash(),  id.tokenizer_hash(), id.rope_hash(),   id.kv_dtype(),
                          PagedKv::kPageRows, shape.n_layers,      shape.n_kv_heads, shape.head_dim};
  return loaded;
}

absl::StatusOr<std::unique_ptr<KvTransport>> MakeWorkerTransport(const WorkerOptions& options,
                                                                 Backend* backend) {
  TransportOptions transport;
  transport.backend = backend;
  transport.ucx_tls = options.ucx_tls;
  return MakeTransport(options.transport, transport);
}

size_t SlotBytes(const WorkerOptions& options, const KvTransport& transport) {
  constexpr size_t kHostKib = 1024, kDeviceKib = 16384;
  size_t kib = static_cast<size_t>(options.slot_kib);
  if (kib == 0) kib = transport.device_rings() ? kDeviceKib : kHostKib;
  return kib << 10;
}

std::string DialAddress(const WorkerOptions& options, int port) {
  std::string host = options.advertise;
  if (host.empty()) host = options.listen.substr(0, options.listen.rfind(':'));
  return absl::StrCat(host, ":", port);
}

absl::Status WaitForStopSignal(const WorkerOptions& options, const BackendGroup& group) {
  while (!StopSignalWithin(absl::Milliseconds(250))) {
    if (group.waiting() < absl::Seconds(options.device_seconds)) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "--device-timeout ", options.device_seconds, ": no answer for so many seconds from ",
        group.description(), "; look at the GPU (nvidia-smi, dmesg), then start the worker again"));
  }
  return absl::OkStatus();
}

void StopServing(const char* role, const WorkerOptions& options, RouterLinks* routers, RpcServer* server) {
  const absl::Time until = absl::Now() + absl::Seconds(options.stop_seconds);
  const int left = routers->Drain(until - absl::Now());
  spdlog::info("{} stopping requests={}", role, left);
  routers->Stop();
  server->Stop(std::max(until - absl::Now(), absl::ZeroDuration()));
}

void ExitHung(const char* role, const absl::Status& why) {
  spdlog::error("{} failed: {}", role, std::string(why.message()));
  ExitNow(1);
}

}  // namespace sluice
