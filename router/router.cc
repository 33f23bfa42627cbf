#include "router/router.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "router/session_expiry.h"

namespace sluice {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(500);
constexpr absl::Duration kFarewell = absl::Milliseconds(200);  // for last answers to leave
constexpr absl::Duration kLongestExpiryPause = absl::Minutes(1);
constexpr int kPublicStreams = 1024;
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kMaxIdle = absl::Minutes(10);
constexpr absl::Duration kMaxAge = absl::Hours(1);
constexpr char kReadyService[] = "sluice.v1.Inference";

void SetStates(const WorkerStateGauges& gauges, const Cluster& cluster, WorkerRole role) {
  gauges.joining.Set(cluster.Count(role, WorkerState::kJoining));
  gauges.ready.Set(cluster.Count(role, WorkerState::kReady));
  gauges.draining.Set(cluster.Count(role, WorkerState::kDraining));
  gauges.lost.Set(cluster.Count(role, WorkerState::kLost));
}

}  // namespace

std::vector<std::string> RouterMethods() {
  std::vector<std::string> methods = InferenceService::Methods();
  for (std::string& path : HttpApi::Methods()) methods.push_back(std::move(path));
  return methods;
}

Router::Router(const RouterConfig& config, ServedModel model, std::unique_ptr<SessionStore> store,
               RouterMetrics* metrics, std::unique_ptr<Authenticator> authenticator)
    : config_(config),
      model_(std::move(model)),
      store_(std::move(store)),
      authenticator_(std::move(authenticator)),
      metrics_(metrics),
      cluster_(model_.identity, config.cluster, config.policy, &clock_),
      channels_(config.internal_tls),
      runs_(config.max_in_flight),
      defaults_(config.defaults),
      pool_(config.work_threads),
      timers_(&clock_),
      sessions_(&services_),
      models_(&model_, &defaults_, authenticator_.get()),
      registry_(&cluster_),
      drains_(&services_, &registry_, [this](bool on) { SetDraining(on); }),
      http_api_(&services_, [this] { return ready(); }) {
  services_ = {&model_,         &clock_,    &cluster_,    &channels_, store_.get(),
               &busy_sessions_, &runs_,     &pool_,       &timers_,   metrics_,
               &stats_,         &draining_, &text_calls_, &defaults_, authenticator_.get(),
               config_.run};
  inference_ = std::make_unique<InferenceService>(&services_);
  admin_service_ = std::make_unique<AdminService>(&services_, &drains_);
  cluster_.SetListener({.lost = [this](const std::string& incarnation) { WorkerLost(incarnation); },
                        .changed = [this] { WorkersChanged(); }});
}

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterConfig& config, ServedModel model,
                                                      std::unique_ptr<SessionStore> store,
                                                      RouterMetrics* metrics) {
  // The clock is the same everywhere; the router's own is not there yet.
  static const SteadyClock clock;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Authenticator> authenticator,
                          Authenticator::Open(config.api_keys, &clock));
  auto router = std::unique_ptr<Router>(
      new Router(config, std::move(model), std::move(store), metrics, std::move(authenticator)));
  SLUICE_RETURN_IF_ERROR(router->Listen());
  router->Tick();
  return router;
}

absl::Status Router::Listen() {
  RpcServerOptions options;
  options.max_message_bytes = config_.max_message_bytes;
  options.reflection = config_.reflection;
  options.address = config_.listen;
  options.flag = "--listen";
  options.tls = config_.tls;
  options.connections = config_.connections;
  options.max_buffered_bytes = config_.max_buffered_bytes;
  options.max_streams_per_connection = kPublicStreams;
  options.handshake_timeout = kHandshake;
  options.max_idle = kMaxIdle;
  options.max_age = kMaxAge;
  SLUICE_ASSIGN_OR_RETURN(public_, RpcServer::Start(options, {inference_.get(), &sessions_, &models_}));
  public_->SetServing(kReadyService, false);
  RpcServerOptions internal;
  internal.address = config_.internal_listen;
  internal.flag = "--internal-listen";
  internal.tls = config_.internal_tls;
  SLUICE_ASSIGN_OR_RETURN(internal_, RpcServer::Start(internal, {&registry_}));
  options.reflection = false;
  options.address = config_.admin_listen;
  options.flag = "--admin-listen";
  SLUICE_ASSIGN_OR_RETURN(admin_, RpcServer::Start(options, {admin_service_.get()}));
  if (config_.http.listen.empty()) return absl::OkStatus();
  HttpOptions http = config_.http;
  http.tls = config_.tls;
  http.max_body_bytes = static_cast<size_t>(config_.max_message_bytes);
  http.max_buffered_bytes = std::max(http.max_buffered_bytes, http.max_body_bytes);
  http.write_timeout = config_.run.slow_client_timeout;
  SLUICE_ASSIGN_OR_RETURN(http_, HttpServer::Start(http, &http_api_));
  return absl::OkStatus();
}

Router::~Router() { Stop(absl::ZeroDuration()); }

void Router::Tick() {
  cluster_.Expire();
  // One at a time: a store that is away must not fill the pool with those who ask for it.
  if (!counting_.exchange(true)) {
    pool_.Submit([this] {
      absl::StatusOr<SessionTotals> totals = store_->Totals();
      counting_ = false;
      if (!totals.ok()) return;
      double busy = static_cast<double>(busy_sessions_.size());
      metrics_->sessions_busy.Set(busy);
      metrics_->sessions_idle.Set(std::max(0.0, static_cast<double>(totals->sessions) - busy));
    });
  }
  if (!config_.api_keys.empty() && !reloading_.exchange(true)) {
    pool_.Submit([this] {
      authenticator_->Reload();
      reloading_ = false;
    });
  }
  const absl::Duration ttl = config_.run.session_ttl;
  if (ttl != absl::InfiniteDuration() && clock_.Now() >= next_expiry_ && !expiring_.exchange(true)) {
    next_expiry_ = clock_.Now() + std::min(ttl / 10, kLongestExpiryPause);
    pool_.Submit([this, ttl] {
      ExpireSessions(services_, absl::ToUnixMillis(absl::Now() - ttl));
      expiring_ = false;
    });
  }
  timers_.At(clock_.Now() + kTick, [this] { Tick(); });
}

void Router::WorkersChanged() {
  SetStates(metrics_->prefill_workers, cluster_, WorkerRole::kPrefill);
  SetStates(metrics_->decode_workers, cluster_, WorkerRole::kDecode);
  std::set<std::string> alive;
  for (const WorkerInfo& worker : cluster_.List()) {
    if (worker.state != WorkerState::kLost) alive.insert(worker.ref.address);
  }
  channels_.KeepOnly(alive);
  MutexLock lock(&ready_mu_);
  bool ready = cluster_.Ready() && !draining_;
  metrics_->ready.Set(ready ? 1 : 0);
  if (ready == ready_) return;
  ready_ = ready;
  const char* why =
      draining_ ? "not ready: draining" : "not ready: needs a ready prefill and a ready decode worker";
  spdlog::info(ready ? "ready" : why);
  if (public_ != nullptr) public_->SetServing(kReadyService, ready);
}

void Router::WorkerLost(const std::string& incarnation) {
  spdlog::warn("lease ran out incarnation={}", incarnation);
  for (const std::shared_ptr<RequestRun>& run : runs_.All()) run->WorkerLost(incarnation);
}

bool Router::ready() {
  MutexLock lock(&ready_mu_);
  return ready_;
}

void Router::SetDraining(bool on) {
  draining_ = on || stopped_;  // who stops does not come back
  if (http_ != nullptr) http_->SetDraining(draining_);
  WorkersChanged();
}

void Router::Stop(absl::Duration grace) {
  if (stopped_.exchange(true)) return;
  SetDraining(true);
  absl::Time until = clock_.Now() + grace;
  while (runs_.size() > 0 && clock_.Now() < until) absl::SleepFor(absl::Milliseconds(20));
  for (const std::shared_ptr<RequestRun>& run : runs_.All()) {
    run->Abandon(absl::UnavailableError("the router is stopping"));
  }
  // Their calls to workers are cancelled and end soon; until then they hold what is ours.
  while (runs_.alive() > 0) absl::SleepFor(absl::Milliseconds(5));
  timers_.Stop();
  if (http_ != nullptr) http_->Stop(kFarewell);
  for (std::unique_ptr<RpcServer>* server : {&public_, &internal_, &admin_}) {
    if (*server != nullptr) (*server)->Stop(kFarewell);
  }
  while (runs_.alive() > 0) absl::SleepFor(absl::Milliseconds(5));
}

}  // namespace sluice
