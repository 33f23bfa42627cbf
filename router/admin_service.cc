#include "router/admin_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/status_codec.h"
#include "router/cache_flush.h"
#include "router/request_run.h"
#include "router/stats_watch.h"
#include "router/unary_reply.h"

namespace sluice {
namespace {

// By spdlog's numbers.
constexpr const char* kLogLevels[] = {"trace", "debug", "info", "warn", "error"};

template <class Response>
class Refusal final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit Refusal(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::Status AdminService::Check(const grpc::CallbackServerContext& context) const {
  return services_->authenticator->CheckOperator(AuthorizationOf(context));
}

grpc::ServerUnaryReactor* AdminService::ListWorkers(grpc::CallbackServerContext* context,
                                                    const v1::ListWorkersRequest*,
                                                    v1::ListWorkersResponse* response) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
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
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  services_->pool->Submit(
      [=, this] { reactor->Finish(ToGrpcStatus(ReadStats(*services_, started_, response))); });
  return reactor;
}

grpc::ServerWriteReactor<v1::Stats>* AdminService::WatchStats(grpc::CallbackServerContext* context,
                                                              const v1::WatchStatsRequest* request) {
  if (absl::Status status = Check(*context); !status.ok()) return new Refusal<v1::Stats>(status);
  const double seconds = request->has_interval_seconds() ? request->interval_seconds() : 1;
  if (!(seconds >= 0.1 && seconds <= 3600)) {
    return new Refusal<v1::Stats>(
        BadField("interval_seconds", absl::StrCat(seconds, " is not in [0.1, 3600]")));
  }
  return sluice::WatchStats(services_, started_, absl::Seconds(seconds));
}

grpc::ServerWriteReactor<v1::DrainProgress>* AdminService::Drain(grpc::CallbackServerContext* context,
                                                                 const v1::DrainRequest* request) {
  if (absl::Status status = Check(*context); !status.ok()) return new Refusal<v1::DrainProgress>(status);
  return drains_->Drain(*request);
}

grpc::ServerUnaryReactor* AdminService::Undrain(grpc::CallbackServerContext* context,
                                                const v1::UndrainRequest* request, v1::UndrainResponse*) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  return Reply(context, drains_->Undrain(*request));
}

grpc::ServerUnaryReactor* AdminService::AbortRequest(grpc::CallbackServerContext* context,
                                                     const v1::AbortRequestRequest* request,
                                                     v1::AbortRequestResponse*) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  if (request->request_id().empty()) return Reply(context, BadField("request_id", "empty; name a request"));
  const auto runs = services_->runs->Named(request->request_id());
  if (runs.empty()) {
    return Reply(context,
                 absl::NotFoundError(absl::StrCat("no request '", request->request_id(), "' is in flight")));
  }
  for (const std::shared_ptr<RequestRun>& run : runs) {
    run->Abandon(WithReason(absl::CancelledError("aborted by an operator"), "ABORTED_BY_OPERATOR"));
  }
  spdlog::info("request aborted request={}", request->request_id());
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::FlushCache(grpc::CallbackServerContext* context,
                                                   const v1::FlushCacheRequest* request,
                                                   v1::FlushCacheResponse* response) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  FlushCaches(*services_, *request, response,
              [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelResponse* response) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  const auto level = std::find(std::begin(kLogLevels), std::end(kLogLevels), request->level());
  if (level == std::end(kLogLevels)) {
    return Reply(context, BadField("level", absl::StrCat("\"", request->level(), "\" is not one of ",
                                                         absl::StrJoin(kLogLevels, ", "))));
  }
  response->set_previous(kLogLevels[std::min<size_t>(spdlog::get_level(), std::size(kLogLevels) - 1)]);
  spdlog::set_level(static_cast<spdlog::level::level_enum>(level - std::begin(kLogLevels)));
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::SetDefaults(grpc::CallbackServerContext* context,
                                                    const v1::SetDefaultsRequest* request,
                                                    v1::SetDefaultsResponse* response) {
  if (absl::Status status = Check(*context); !status.ok()) return Reply(context, status);
  if (absl::Status status = services_->defaults->Set(*request); !status.ok()) return Reply(context, status);
  const RequestDefaults now = services_->defaults->Get();
  response->set_preset(now.preset);
  response->set_session_preset(now.session_preset);
  response->set_budget_tokens(now.budget_tokens);
  response->set_timeout_seconds(absl::ToDoubleSeconds(now.timeout));
  return Reply(context, absl::OkStatus());
}

}  // namespace sluice
