// Role: the router as one object: listeners, workers, sessions, requests in flight. main.cc makes one from
// flags, tests make one in process. Threads: gRPC's pool, "work" (WorkPool), "timers"; see README.md.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/metrics/router_metrics.h"
#include "common/rpc/rpc_server.h"
#include "common/session/session_store.h"
#include "router/admin_service.h"
#include "router/authenticator.h"
#include "router/drains.h"
#include "router/http/http_api.h"
#include "router/http/http_server.h"
#include "router/inference_service.h"
#include "router/models_service.h"
#include "router/registry_service.h"
#include "router/run_services.h"
#include "router/sessions_service.h"

namespace sluice {

struct RouterConfig {
  std::string listen = "127.0.0.1:7100";
  std::string internal_listen = "127.0.0.1:7101";
  std::string admin_listen = "127.0.0.1:7102";
  HttpOptions http;  // max_body_bytes follows max_message_bytes
  bool reflection = false;
  std::shared_ptr<Tls> tls;                     // of the public and the admin listener; null: none
  std::shared_ptr<Tls> internal_tls;            // with workers; likewise
  ConnectionBounds connections;                 // of the public listener
  size_t max_buffered_bytes = size_t{1} << 30;  // of requests on their way in; likewise
  std::string api_keys;                         // file of `sluice keys`; empty: everybody may ask
  int max_in_flight = 256;
  int max_message_bytes = 16 << 20;
  int work_threads = 2;
  ClusterOptions cluster;
  RunOptions run;
  RequestDefaults defaults;
  const RoutePolicy* policy = RoutePolicies()[0];
};

// What makes requests, as metrics label it: RPCs, and paths of HTTP.
std::vector<std::string> RouterMethods();

class Router {
 public:
  // metrics outlives the router. Errors name the flag to change.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const RouterConfig& config, ServedModel model,
                                                       std::unique_ptr<SessionStore> store,
                                                       RouterMetrics* metrics);
  ~Router();

  int port() const { return public_->port(); }
  int internal_port() const { return internal_->port(); }
  int admin_port() const { return admin_->port(); }
  int http_port() const { return http_ == nullptr ? 0 : http_->port(); }  // 0: there is none

  // Takes no new requests, or takes them again.
  void SetDraining(bool on);
  // Drains, lets requests in flight end until `grace` is over, then ends them. Idempotent.
  void Stop(absl::Duration grace);

  int requests_in_flight() const { return runs_.size(); }

 private:
  Router(const RouterConfig& config, ServedModel model, std::unique_ptr<SessionStore> store,
         RouterMetrics* metrics, std::unique_ptr<Authenticator> authenticator);
  absl::Status Listen();
  void Tick();  // leases, gauges, expired sessions; plans the next one
  void WorkersChanged();
  bool ready();
  void WorkerLost(const std::string& incarnation);

  const RouterConfig config_;
  const SteadyClock clock_;
  const ServedModel model_;
  const std::unique_ptr<SessionStore> store_;
  const std::unique_ptr<Authenticator> authenticator_;
  RouterMetrics* const metrics_;
  Cluster cluster_;
  WorkerChannels channels_;
  BusySessions busy_sessions_;
  RunTable runs_;
  RouterStats stats_;
  Defaults defaults_;
  std::atomic<bool> draining_{false};
  std::atomic<int> text_calls_{0};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> counting_{false};              // sessions, on the pool
  std::atomic<bool> expiring_{false};              // likewise
  std::atomic<bool> reloading_{false};             // keys; likewise
  absl::Time next_expiry_ = absl::InfinitePast();  // Tick's
  Mutex ready_mu_;
  bool ready_ ABSL_GUARDED_BY(ready_mu_) = false;
  RunServices services_;
  WorkPool pool_;
  Timers timers_;
  std::unique_ptr<InferenceService> inference_;
  SessionsService sessions_;
  ModelsService models_;
  RegistryService registry_;
  Drains drains_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<RpcServer> public_, internal_, admin_;
  HttpApi http_api_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace sluice
