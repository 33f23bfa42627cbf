// sluice-decode: flags to structs to objects.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random_id.h"
#include "common/handoff/result.h"
#include "common/rpc/certificate_expiry.h"
#include "common/rpc/router_links.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/stop_signals.h"
#include "common/rpc/worker_process.h"
#include "decode_server/decode_loop.h"
#include "decode_server/decode_service.h"
#include "decode_server/receive_loop.h"
#include "kernels/make_backend.h"

namespace sluice {
namespace {

struct Options {
  WorkerOptions worker;
  int kv_memory_mb = 1024;
  int max_sequences = 64;
  int max_batch = 32;
  int max_requests = 1024;
};

absl::Status Serve(Options options) {
  std::optional<StopsAtOnce> at_once(std::in_place, "decode stopped while it started", 0);
  if (options.worker.name.empty()) options.worker.name = absl::StrCat("decode-", getpid());
  SLUICE_RETURN_IF_ERROR(NameModel(&options.worker));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<Tls> tls, OpenInternalTls(options.worker.tls));
  MetricsRegistry registry({"decode", options.worker.model_name, SLUICE_VERSION});
  DecodeMetrics metrics(&registry);
  KvTransferMetrics transfer_metrics(&registry, FailureReasonNames());
  const CertificateExpiry expiry(&registry, "internal", tls);
  SLUICE_ASSIGN_OR_RETURN(int metrics_port,
                          registry.Serve(options.worker.metrics_listen, "--metrics-listen"));
  spdlog::info("metrics port={}", metrics_port);

  const SteadyClock clock;
  const absl::Time load_began = clock.Now();
  SLUICE_ASSIGN_OR_RETURN(LoadedModel loaded, LoadWorkerModel(options.worker, [&metrics](double done) {
                            metrics.model_load_progress_ratio.Set(done);
                          }));
  metrics.model_load_seconds.Set(absl::ToDoubleSeconds(clock.Now() - load_began));
  registry.WatchGpus(GpuAddresses(options.worker.device, options.worker.tensor_parallel));
  const RankedModel& model = *loaded.model;
  spdlog::info("model loaded name={} device=\"{}\" weights_mb={} seconds={:.1f}", loaded.identity.name(),
               loaded.group->description(), model.weight_bytes() >> 20,
               absl::ToDoubleSeconds(clock.Now() - load_began));

  DecodeCacheOptions cache_options;
  cache_options.n_slots = options.max_sequences;
  cache_options.max_rows = model.shape().context;
  cache_options.memory_bytes = size_t{static_cast<size_t>(options.kv_memory_mb)} << 20;
  cache_options.sliding_windows = model.shape().sliding_window;
  absl::StatusOr<std::unique_ptr<RankedCache>> created =
      RankedCache::Create(*loaded.group, model.kv_shape(), cache_options);
  if (!created.ok()) {
    return absl::Status(created.status().code(), absl::StrCat("--kv-memory ", options.kv_memory_mb,
                                                              " [MB]: ", created.status().message()));
  }
  const std::unique_ptr<RankedCache> cache = *std::move(created);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<KvTransport> transport,
                          MakeWorkerTransport(options.worker, loaded.group->rank(0)));
  spdlog::info("transport \"{}\"", transport->description());

  const std::string incarnation = RandomId128();
  GenerationTable table(options.max_requests);
  DecodeLoopOptions loop_options;
  loop_options.max_batch = options.max_batch;
  DecodeLoop decode_loop(&model, cache.get(), &table, loop_options, &clock, &metrics);
  HandoffReceiverOptions receiver;
  receiver.incarnation = incarnation;
  receiver.compatibility = loaded.compatibility;
  receiver.shape = model.kv_shape();
  receiver.ring_slots = options.worker.ring_slots;
  receiver.slot_bytes = SlotBytes(options.worker, *transport);
  ReceiveLoop receive_loop(receiver, std::move(transport), *loaded.group, cache.get(), &table, &decode_loop,
                           &clock, &metrics, &transfer_metrics);
  GenerateService generate(&table, &receive_loop, &clock);
  HandoffService handoff(&receive_loop);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RpcServer> server,
                          RpcServer::Start({.address = options.worker.listen, .flag = "--listen", .tls = tls},
                                           {&generate, &handoff}));

  at_once.reset();  // from here on there may be requests
  internal::v1::WorkerReport report;
  report.set_name(options.worker.name);
  report.set_role("decode");
  report.set_address(DialAddress(options.worker, server->port()));
  report.set_incarnation(incarnation);
  *report.mutable_model() = loaded.identity;
  RouterLinks routers(
      options.worker.routers, report,
      [&] {
        internal::v1::WorkerLoad load;
        load.set_running(decode_loop.running());
        load.set_queued(table.size() - decode_loop.running());
        load.set_kv_pages_free(cache->pages().free);
        load.set_kv_pages_total(cache->pages().total);
        load.set_ready(true);
        return load;
      },
      nullptr, tls);
  metrics.ready.Set(1);
  server->SetServing("sluice.internal.v1.DecodeWorker", true);
  spdlog::info("decode ready name={} address={} router={} pages={}", options.worker.name, report.address(),
               absl::StrJoin(options.worker.routers, ","), cache->pages().total);

  if (absl::Status hung = WaitForStopSignal(options.worker, *loaded.group); !hung.ok())
    ExitHung("decode", hung);
  at_once.emplace("decode stopped by a second signal", 1, absl::Seconds(1));
  metrics.ready.Set(0);
  StopServing("decode", options.worker, &routers, server.get());
  receive_loop.Stop();
  decode_loop.Stop();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BlockStopSignals();
  Options options;
  CLI::App app("receives kept KV from prefill servers and generates with continuous batching",
               "sluice-decode");
  AddWorkerFlags(&app, &options.worker);
  app.add_option("--kv-memory", options.kv_memory_mb, "MB for KV pages and their bounds, over all ranks")
      ->envname("SLUICE_KV_MEMORY")
      ->group("Memory")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-sequences", options.max_sequences, "sequences resident at once")
      ->envname("SLUICE_MAX_SEQUENCES")
      ->group("Memory")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-batch", options.max_batch, "sequences in one step")
      ->envname("SLUICE_MAX_BATCH")
      ->group("Memory")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-requests", options.max_requests, "requests registered at once")
      ->envname("SLUICE_MAX_REQUESTS")
      ->group("Memory")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  if (const std::optional<int> code = ParseFlags(&app, argc, argv)) return *code;
  spdlog::set_level(spdlog::level::from_str(options.worker.log_level));
  absl::Status status = Serve(std::move(options));
  if (!status.ok()) {
    spdlog::error("decode failed: {}", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
