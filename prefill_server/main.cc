// sluice-prefill: flags to structs to objects.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random_id.h"
#include "common/compression/compression_spec.h"
#include "common/engine/warm_up.h"
#include "common/handoff/result.h"
#include "common/rpc/certificate_expiry.h"
#include "common/rpc/router_links.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/stop_signals.h"
#include "common/rpc/worker_process.h"
#include "common/transport/transports.h"
#include "kernels/make_backend.h"
#include "prefill_server/prefill_loop.h"
#include "prefill_server/prefill_service.h"
#include "prefill_server/send_loop.h"
#include "prefill_server/shadow.h"

namespace sluice {
namespace {

// The handshake brings a communicator up, which takes seconds.
constexpr absl::Duration kCommunicatorTimeout = absl::Seconds(20);

struct Options {
  WorkerOptions worker;
  PrefillLoopOptions loop;
  int min_transport_mb = 0;
  int history_memory_mb = 1024;
  int work_memory_mb = 2048;
  double shadow_rate = 0;
  int shadow_memory_mb = 1024;
};

// Null where nothing is to be measured.
absl::StatusOr<std::unique_ptr<Shadow>> MakeShadow(const Options& options, const RankedModel& model,
                                                   const Clock* clock, PrefillMetrics* metrics) {
  if (options.shadow_rate == 0) return nullptr;
  absl::StatusOr<std::unique_ptr<Shadow>> shadow = Shadow::Create(
      &model, {options.shadow_rate, static_cast<size_t>(options.shadow_memory_mb) << 20}, clock, metrics);
  if (shadow.ok()) return shadow;
  return absl::Status(shadow.status().code(),
                      absl::StrCat("--shadow-rate ", options.shadow_rate, " with --shadow-memory ",
                                   options.shadow_memory_mb, ": ", shadow.status().message()));
}

absl::Status Serve(Options options) {
  std::optional<StopsAtOnce> at_once(std::in_place, "prefill stopped while it started", 0);
  if (options.worker.name.empty()) options.worker.name = absl::StrCat("prefill-", getpid());
  PrefillLabels labels;
  labels.algorithms = MethodNames();
  labels.transports = TransportNames();
  SLUICE_RETURN_IF_ERROR(NameModel(&options.worker));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<Tls> tls, OpenInternalTls(options.worker.tls));
  MetricsRegistry registry({"prefill", options.worker.model_name, SLUICE_VERSION});
  PrefillMetrics metrics(&registry, labels);
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
  const absl::Time warm_began = clock.Now();
  if (absl::Status warm = WarmUpPrefill(model); !warm.ok())
    return absl::Status(warm.code(), absl::StrCat("the first prompt: ", warm.message()));
  spdlog::info("model warm seconds={:.1f}", absl::ToDoubleSeconds(clock.Now() - warm_began));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<KvTransport> transport,
                          MakeWorkerTransport(options.worker, loaded.group->rank(0)));
  spdlog::info("transport \"{}\"", transport->description());

  HandoffSenderOptions sender;
  sender.incarnation = RandomId128();
  sender.compatibility = loaded.compatibility;
  sender.shape = model.kv_shape();
  sender.ring_slots = options.worker.ring_slots;
  sender.slot_bytes = SlotBytes(options.worker, *transport);
  if (transport->two_sided()) sender.handshake_timeout = kCommunicatorTimeout;
  sender.min_bytes_per_second = options.min_transport_mb * 1e6;
  absl::StatusOr<std::unique_ptr<SendLoop>> send_loop = SendLoop::Create(
      sender, std::move(transport), loaded.group->rank(0), &clock, &metrics, &transfer_metrics, tls);
  if (!send_loop.ok()) {
    return absl::Status(
        send_loop.status().code(),
        absl::StrCat("send ring of --ring-slots ", options.worker.ring_slots, " times --slot-kib ",
                     sender.slot_bytes >> 10, ": ", send_loop.status().message()));
  }
  options.loop.history_bytes = static_cast<size_t>(options.history_memory_mb) << 20;
  options.loop.work_bytes = static_cast<size_t>(options.work_memory_mb) << 20;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Shadow> shadow, MakeShadow(options, model, &clock, &metrics));
  PrefillLoop prefill_loop(&model, send_loop->get(), options.loop, &clock, &metrics, std::move(shadow));
  PrefillService service(&model, &prefill_loop, send_loop->get(), &clock);
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<RpcServer> server,
      RpcServer::Start({.address = options.worker.listen, .flag = "--listen", .tls = tls}, {&service}));

  at_once.reset();  // from here on there may be requests
  internal::v1::WorkerReport report;
  report.set_name(options.worker.name);
  report.set_role("prefill");
  report.set_address(DialAddress(options.worker, server->port()));
  report.set_incarnation(sender.incarnation);
  *report.mutable_model() = loaded.identity;
  std::atomic<bool> serving{true};
  const auto load_now = [&] {
    internal::v1::WorkerLoad load;
    load.set_running(std::max(prefill_loop.running(), (*send_loop)->live()));
    load.set_queued(prefill_loop.queued());
    load.set_queued_tokens(prefill_loop.queued_tokens());
    load.set_prefill_tokens_per_second(prefill_loop.tokens_per_second());
    load.set_bytes_in_flight((*send_loop)->bytes_in_flight());
    // A connection below the floor: prompts go to workers that reach their decode servers faster.
    const bool ready = !(*send_loop)->too_slow();
    metrics.ready.Set(ready && serving ? 1 : 0);
    load.set_ready(ready);
    return load;
  };
  RouterLinks routers(
      options.worker.routers, report, load_now,
      [&](std::vector<std::string> decodes) { (*send_loop)->Know(std::move(decodes)); }, tls);
  metrics.ready.Set(1);
  server->SetServing("sluice.internal.v1.PrefillWorker", true);
  spdlog::info("prefill ready name={} address={} router={}", options.worker.name, report.address(),
               absl::StrJoin(options.worker.routers, ","));

  if (absl::Status hung = WaitForStopSignal(options.worker, *loaded.group); !hung.ok())
    ExitHung("prefill", hung);
  at_once.emplace("prefill stopped by a second signal", 1, absl::Seconds(1));
  serving = false;
  metrics.ready.Set(0);
  StopServing("prefill", options.worker, &routers, server.get());
  prefill_loop.Stop();
  (*send_loop)->Stop();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BlockStopSignals();
  Options options;
  CLI::App app("computes prompts layer by layer and hands the kept KV to decode servers", "sluice-prefill");
  AddWorkerFlags(&app, &options.worker);
  auto add = [&app](const char* flag, int& value, const char* help, const char* env, const char* group,
                    int most) {
    app.add_option(flag, value, help)
        ->envname(env)
        ->group(group)
        ->check(CLI::Range(1, most))
        ->capture_default_str();
  };
  add("--history-memory", options.history_memory_mb, "MB of session history, over all ranks",
      "SLUICE_HISTORY_MEMORY", "Memory", 1 << 24);
  add("--work-memory", options.work_memory_mb,
      "MB of scratch and kept sets of prompts under way, over all ranks", "SLUICE_WORK_MEMORY", "Memory",
      1 << 24);
  app.add_option("--min-transport-rate", options.min_transport_mb,
                 "MB/s that the probe of a decode server must reach, or this worker is not ready; 0: any")
      ->envname("SLUICE_MIN_TRANSPORT_RATE")
      ->group("Hand-off")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--shadow-rate", options.shadow_rate,
                 "share of compressed prompts on which is measured what compression lost; 0: none, and "
                 "requests that ask for it are refused")
      ->envname("SLUICE_SHADOW_RATE")
      ->group("Measurement")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add("--shadow-memory", options.shadow_memory_mb,
      "MB of KV for one prompt that is measured, over all ranks; longer ones are skipped",
      "SLUICE_SHADOW_MEMORY", "Measurement", 1 << 24);
  add("--max-queue", options.loop.max_queue, "prompts that wait", "SLUICE_MAX_QUEUE", "Scheduling", 1 << 20);
  add("--short-tokens", options.loop.scheduler.short_tokens, "prompts up to so many tokens share a pass",
      "SLUICE_SHORT_TOKENS", "Scheduling", 1 << 20);
  add("--batch-tokens", options.loop.scheduler.max_batch_tokens, "tokens of one shared pass",
      "SLUICE_BATCH_TOKENS", "Scheduling", 1 << 20);
  if (const std::optional<int> code = ParseFlags(&app, argc, argv)) return *code;
  spdlog::set_level(spdlog::level::from_str(options.worker.log_level));
  absl::Status status = Serve(std::move(options));
  if (!status.ok()) {
    spdlog::error("prefill failed: {}", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
