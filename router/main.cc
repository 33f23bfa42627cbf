// sluice-router: flags to structs to objects.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_lock.h"
#include "common/base/status.h"
#include "common/compression/compression_spec.h"
#include "common/rpc/certificate_expiry.h"
#include "common/rpc/process_flags.h"
#include "common/rpc/stop_signals.h"
#include "common/rpc/tls_flags.h"
#include "common/session/memory_store.h"
#include "common/session/postgres_store.h"
#include "common/session/sqlite_store.h"
#include "router/router.h"

namespace sluice {
namespace {

constexpr int kOtherFiles = 256;  // of workers, sessions, metrics

struct Options {
  std::string model, model_name;
  RouterConfig router;
  TlsFiles tls;
  InternalTls internal_tls;
  std::string metrics_listen = "127.0.0.1:7103";
  std::string sessions_db = "sluice-sessions.db";
  int hsa_pays_from = kDefaultHsaPaysFrom, max_logprobs = kDefaultMaxLogprobs;
  std::string policy = RoutePolicies()[0]->name();
  int max_message_mb = 16, max_buffered_mb = 1024;
  int max_sessions = SessionLimits().max_sessions_per_owner;
  int max_session_mb = static_cast<int>(SessionLimits().max_bytes_per_owner >> 20);
  double session_ttl_hours = 0;
  double lease_seconds = 10, timeout_seconds = 600, slow_client_seconds = 30, pair_wait_seconds = 15,
         busy_wait_seconds = 30, stop_seconds = 30, sessions_seconds = 10, http_header_seconds = 10,
         http_body_seconds = 60, http_idle_seconds = 75;
  std::string log_level = "info";
};

std::string PolicyNames() {
  return absl::StrJoin(RoutePolicies(), ", ",
                       [](std::string* out, const RoutePolicy* policy) { out->append(policy->name()); });
}

void AddFlags(CLI::App* app, Options* options) {
  AddProcessFlags(app, &options->log_level);
  auto add = [app](const char* flag, auto& value, const std::string& help, const char* env,
                   const char* group) {
    return app->add_option(flag, value, help)->envname(env)->group(group)->capture_default_str();
  };
  auto seconds = [&](const char* flag, double& value, const std::string& help, const char* env) {
    add(flag, value, help + " [seconds]", env, "Time")->check([](const std::string& text) {
      double value = 0;  // a NaN is in no range
      const bool good = absl::SimpleAtod(text, &value) && value >= 0.001 && value <= 1e6;
      return good ? std::string() : "want seconds from 0.001 to 1000000, got '" + text + "'";
    });
  };
  add("--model", options->model, "Hugging Face directory or GGUF file, the workers' own", "SLUICE_MODEL",
      "Model")
      ->required();
  add("--model-name", options->model_name, "name that clients use (default: the directory's)",
      "SLUICE_MODEL_NAME", "Model");
  add("--listen", options->router.listen, "clients' address, host:port; port 0 takes a free one",
      "SLUICE_LISTEN", "Network");
  add("--http-listen", options->router.http.listen,
      "clients' address over HTTP (OpenAI's API), host:port; empty: none", "SLUICE_HTTP_LISTEN", "Network");
  add("--http-threads", options->router.http.threads, "threads of all HTTP connections",
      "SLUICE_HTTP_THREADS", "Network")
      ->check(CLI::Range(1, 256));
  add("--http-max-connections", options->router.http.max_connections, "HTTP connections at a time",
      "SLUICE_HTTP_MAX_CONNECTIONS", "Network")
      ->check(CLI::Range(1, 1 << 20));
  add("--internal-listen", options->router.internal_listen, "workers' address; keep it private",
      "SLUICE_INTERNAL_LISTEN", "Network");
  add("--admin-listen", options->router.admin_listen, "operators' address; keep it private",
      "SLUICE_ADMIN_LISTEN", "Network");
  add("--metrics-listen", options->metrics_listen, "address of /metrics", "SLUICE_METRICS_LISTEN", "Network");
  app->add_flag("--reflection", options->router.reflection, "serve gRPC reflection on --listen")
      ->envname("SLUICE_REFLECTION")
      ->group("Network");
  add("--api-keys", options->router.api_keys,
      "file of who may ask (sluice keys writes it), read again when it changes (default: everybody may)",
      "SLUICE_API_KEYS", "Network");
  AddPublicTlsFlags(app, &options->tls);
  AddInternalTlsFlags(app, &options->internal_tls);
  add("--max-connections", options->router.connections.most, "connections of clients",
      "SLUICE_MAX_CONNECTIONS", "Network")
      ->check(CLI::Range(1, 1 << 20));
  add("--max-connections-per-host", options->router.connections.most_of_a_host,
      "connections from one address; 0: no bound of its own", "SLUICE_MAX_CONNECTIONS_PER_HOST", "Network")
      ->check(CLI::Range(0, 1 << 20));
  add("--max-buffered", options->max_buffered_mb,
      "requests on their way in, over all connections; beyond it the largest are cut off [MB]",
      "SLUICE_MAX_BUFFERED", "Network")
      ->check(CLI::Range(16, 1 << 20));
  add("--max-message", options->max_message_mb, "largest request [MB]", "SLUICE_MAX_MESSAGE", "Network")
      ->check(CLI::Range(1, 1024));
  add("--sessions-db", options->sessions_db,
      "SQLite file of the sessions; postgresql://user@host:port/database for several routers; \"memory\" "
      "forgets them at exit",
      "SLUICE_SESSIONS_DB", "Sessions");
  seconds("--sessions-timeout", options->sessions_seconds,
          "PostgreSQL gets so long for a call, restarts included", "SLUICE_SESSIONS_TIMEOUT");
  add("--max-sessions", options->max_sessions, "sessions kept at most", "SLUICE_MAX_SESSIONS", "Sessions")
      ->check(CLI::Range(1, 1 << 30));
  add("--max-session-mb", options->max_session_mb, "text and token ids of all sessions, at most [MB]",
      "SLUICE_MAX_SESSION_MB", "Sessions")
      ->check(CLI::Range(1, 1 << 30));
  add("--session-ttl", options->session_ttl_hours,
      "a session is deleted so long after its last turn; 0: never [hours]", "SLUICE_SESSION_TTL", "Sessions")
      ->check([](const std::string& text) {
        double value = 0;
        const bool good = absl::SimpleAtod(text, &value) && value >= 0 && value <= 1e6;
        return good ? std::string() : "want hours from 0 to 1000000, got '" + text + "'";
      });
  add("--max-in-flight", options->router.max_in_flight, "requests at a time; more are RESOURCE_EXHAUSTED",
      "SLUICE_MAX_IN_FLIGHT", "Requests")
      ->check(CLI::Range(1, 1 << 20));
  add("--route-policy", options->policy, "one of " + PolicyNames(), "SLUICE_ROUTE_POLICY", "Requests");
  add("--hsa-pays-from", options->hsa_pays_from,
      "requests with dense_if_faster read sparsely from so many kept rows beyond their budget on [tokens]",
      "SLUICE_HSA_PAYS_FROM", "Requests")
      ->check(CLI::Range(0, 1 << 24));
  add("--max-logprobs", options->max_logprobs, "largest output.top_logprobs; -1 is the whole vocabulary",
      "SLUICE_MAX_LOGPROBS", "Requests")
      ->check(CLI::Range(-1, 1 << 24));
  add("--work-threads", options->router.work_threads, "threads that tokenise and read sessions",
      "SLUICE_WORK_THREADS", "Requests")
      ->check(CLI::Range(1, 256));
  seconds("--default-timeout", options->timeout_seconds, "deadline of a request that brings none",
          "SLUICE_DEFAULT_TIMEOUT");
  seconds("--slow-client-timeout", options->slow_client_seconds,
          "a client that does not read is cut off after", "SLUICE_SLOW_CLIENT_TIMEOUT");
  seconds("--http-header-timeout", options->http_header_seconds, "an HTTP request's headers come within",
          "SLUICE_HTTP_HEADER_TIMEOUT");
  seconds("--http-body-timeout", options->http_body_seconds, "an HTTP request's body comes within",
          "SLUICE_HTTP_BODY_TIMEOUT");
  seconds("--http-idle-timeout", options->http_idle_seconds, "an HTTP connection waits for its next request",
          "SLUICE_HTTP_IDLE_TIMEOUT");
  seconds("--worker-lease", options->lease_seconds, "a silent worker is lost after", "SLUICE_WORKER_LEASE");
  seconds("--pair-wait", options->pair_wait_seconds, "a request waits for a lost worker's successor",
          "SLUICE_PAIR_WAIT");
  seconds("--busy-wait", options->busy_wait_seconds, "a request waits for room on a worker",
          "SLUICE_BUSY_WAIT");
  seconds("--stop-timeout", options->stop_seconds, "requests in flight get so long at shutdown",
          "SLUICE_STOP_TIMEOUT");
  app->footer(
      "Example:\n"
      "  sluice-router --model models/needle-14m --listen 0.0.0.0:7100 --sessions-db "
      "/var/lib/sluice/sessions.db");
}

absl::StatusOr<std::unique_ptr<SessionStore>> OpenStore(const Options& options) {
  SessionLimits limits;
  limits.max_sessions_per_owner = options.max_sessions;
  limits.max_bytes_per_owner = int64_t{options.max_session_mb} << 20;
  if (options.sessions_db == "memory") return NewMemoryStore(limits);
  if (IsPostgresUri(options.sessions_db)) {
    return OpenPostgresStore({options.sessions_db, absl::Seconds(options.sessions_seconds)}, limits);
  }
  return OpenSqliteStore(options.sessions_db, limits);
}

// One router a file: each keeps in memory which turns are under way.
absl::StatusOr<FileLock> ClaimSessions(const std::string& db) {
  absl::StatusOr<FileLock> lock = FileLock::Take(db + ".lock");
  if (lock.ok()) return lock;
  const bool held = absl::IsFailedPrecondition(lock.status());
  return absl::Status(
      lock.status().code(),
      absl::StrCat("--sessions-db ", db, ": ", lock.status().message(),
                   held ? "; stop the router that has it, or give this one a file of its own" : ""));
}

// A connection takes two files.
void FitFiles(ConnectionBounds* connections) {
  const int files = RaiseFileLimit();
  const int room = std::max((files - kOtherFiles) / 2, 16);
  if (connections->most <= room) return;
  spdlog::warn("max connections lowered from={} to={} files={}: raise the limit of open files",
               connections->most, room, files);
  connections->most = room;
}

absl::Status Serve(Options options) {
  std::optional<StopsAtOnce> at_once(std::in_place, "router stopped while it started", 0);
  RouterConfig& config = options.router;
  config.policy = FindRoutePolicy(options.policy);
  if (config.policy == nullptr) {
    return absl::InvalidArgumentError("--route-policy " + options.policy + ": not one of " + PolicyNames());
  }
  config.max_message_bytes = options.max_message_mb << 20;
  config.max_buffered_bytes = static_cast<size_t>(options.max_buffered_mb) << 20;
  FitFiles(&config.connections);
  SLUICE_ASSIGN_OR_RETURN(config.tls, Tls::Open(options.tls, TlsUse::kServer));
  SLUICE_ASSIGN_OR_RETURN(config.internal_tls, OpenInternalTls(options.internal_tls));
  config.cluster.lease = absl::Seconds(options.lease_seconds);
  config.defaults.timeout = absl::Seconds(options.timeout_seconds);
  if (options.session_ttl_hours > 0) config.run.session_ttl = absl::Hours(options.session_ttl_hours);
  config.run.slow_client_timeout = absl::Seconds(options.slow_client_seconds);
  config.http.header_timeout = absl::Seconds(options.http_header_seconds);
  config.http.body_timeout = absl::Seconds(options.http_body_seconds);
  config.http.idle_timeout = absl::Seconds(options.http_idle_seconds);
  config.run.flow.pair_wait = absl::Seconds(options.pair_wait_seconds);
  config.run.flow.busy_wait = absl::Seconds(options.busy_wait_seconds);

  SLUICE_ASSIGN_OR_RETURN(ServedModel model, LoadServedModel(options.model, options.model_name));
  model.hsa_pays_from = options.hsa_pays_from;
  const int vocab = model.shape.vocab;
  model.description.set_max_logprobs(options.max_logprobs < 0 ? vocab
                                                              : std::min(options.max_logprobs, vocab));
  std::optional<FileLock> claim;
  if (options.sessions_db != "memory" && !IsPostgresUri(options.sessions_db)) {
    SLUICE_ASSIGN_OR_RETURN(FileLock lock, ClaimSessions(options.sessions_db));
    claim.emplace(std::move(lock));
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SessionStore> store, OpenStore(options));
  MetricsRegistry registry({"router", model.name, SLUICE_VERSION});
  RouterMetrics metrics(&registry, {RouterMethods(), OffCauseNames()});
  const CertificateExpiry expiry(&registry, "public", config.tls);
  const CertificateExpiry internal_expiry(&registry, "internal", config.internal_tls);
  SLUICE_ASSIGN_OR_RETURN(int metrics_port, registry.Serve(options.metrics_listen, "--metrics-listen"));
  std::string name = model.name;
  at_once.reset();  // from here on there may be requests
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Router> router,
                          Router::Start(config, std::move(model), std::move(store), &metrics));
  spdlog::info("router listens model={} port={} http_port={} internal_port={} admin_port={} metrics_port={}",
               name, router->port(), router->http_port(), router->internal_port(), router->admin_port(),
               metrics_port);
  WaitForStopSignal();
  at_once.emplace("router stopped by a second signal", 1, absl::Seconds(1));
  spdlog::info("router stopping in_flight={}", router->requests_in_flight());
  router->Stop(absl::Seconds(options.stop_seconds));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  BlockStopSignals();
  Options options;
  CLI::App app("takes requests, keeps sessions, and pairs prefill with decode workers", "sluice-router");
  AddFlags(&app, &options);
  if (const std::optional<int> code = ParseFlags(&app, argc, argv)) return *code;
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  absl::Status status = Serve(std::move(options));
  if (!status.ok()) {
    spdlog::error("router failed: {}", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
