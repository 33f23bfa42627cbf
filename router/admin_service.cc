#include "router/admin_service.h"

#include <utility>

#include "common/rpc/status_codec.h"
#include "router/unary_reply.h"

namespace sluice {
namespace {

template <class Response>
class Refusal final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit Refusal(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::ListWorkers(grpc::CallbackServerContext* context,
                                                    const v1::ListWorkersRequest*,
                                                    v1::ListWorkersResponse* response) {
  for (const WorkerInfo& info : services_->cluster->List()) {
    v1::Worker* worker = response->add_workers();
    worker->set_name(info.ref.name);
    worker->set_role(RoleName(info.role));
    worker->set_address(info.ref.address);
    worker->set_incarnation(info.ref.incarnation);
    worker->set_model(info.model);
    worker->set_state(StateName(info.state));
    worker->set_lease_seconds_left(absl::ToDoubleSeconds(info.lease_left));
    worker->set_running(info.load.running());
    worker->set_queued(info.load.queued());
    worker->set_kv_pages_free(info.load.kv_pages_free());
    worker->set_kv_pages_total(info.load.kv_pages_total());
    worker->set_weights_hash(info.weights_hash);
    worker->set_queued_tokens(info.load.queued_tokens());
    worker->set_bytes_in_flight(info.load.bytes_in_flight());
    worker->set_prefill_tokens_per_second(info.load.prefill_tokens_per_second());
  }
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::GetStats(grpc::CallbackServerContext* context,
                                                 const v1::GetStatsRequest*, v1::Stats* response) {
  const RouterStats& stats = *services_->stats;
  response->set_requests_total(stats.requests);
  response->set_requests_failed(stats.failed);
  response->set_in_flight(services_->runs->size());
  response->set_prompt_tokens(stats.prompt_tokens);
  response->set_cached_tokens(stats.cached_tokens);
  response->set_completion_tokens(stats.completion_tokens);
  response->set_uptime_seconds(absl::ToDoubleSeconds(services_->clock->Now() - started_));
  response->set_ready_prefill(services_->cluster->Count(WorkerRole::kPrefill, WorkerState::kReady));
  response->set_ready_decode(services_->cluster->Count(WorkerRole::kDecode, WorkerState::kReady));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  services_->pool->Submit([=, this] {
    absl::StatusOr<SessionTotals> totals = services_->store->Totals();
    if (totals.ok()) response->set_sessions(totals->sessions);
    reactor->Finish(ToGrpcStatus(totals.status()));
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::Stats>* AdminService::WatchStats(grpc::CallbackServerContext*,
                                                              const v1::WatchStatsRequest*) {
  return new Refusal<v1::Stats>(NotServed("Admin.WatchStats"));
}

grpc::ServerWriteReactor<v1::DrainProgress>* AdminService::Drain(grpc::CallbackServerContext*,
                                                                 const v1::DrainRequest* request) {
  return drains_->Drain(*request);
}

grpc::ServerUnaryReactor* AdminService::Undrain(grpc::CallbackServerContext* context,
                                                const v1::UndrainRequest* request, v1::UndrainResponse*) {
  return Reply(context, drains_->Undrain(*request));
}

grpc::ServerUnaryReactor* AdminService::AbortRequest(grpc::CallbackServerContext* context,
                                                     const v1::AbortRequestRequest*,
                                                     v1::AbortRequestResponse*) {
  return Reply(context, NotServed("Admin.AbortRequest"));
}

grpc::ServerUnaryReactor* AdminService::FlushCache(grpc::CallbackServerContext* context,
                                                   const v1::FlushCacheRequest*, v1::FlushCacheResponse*) {
  return Reply(context, NotServed("Admin.FlushCache"));
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest*, v1::SetLogLevelResponse*) {
  return Reply(context, NotServed("Admin.SetLogLevel"));
}

grpc::ServerUnaryReactor* AdminService::SetDefaults(grpc::CallbackServerContext* context,
                                                    const v1::SetDefaultsRequest*, v1::SetDefaultsResponse*) {
  return Reply(context, NotServed("Admin.SetDefaults"));
}

}  // namespace sluice
