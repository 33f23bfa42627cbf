#include "router/cache_flush.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(10);

struct FlushCall {
  v1::FlushedWorker* out;
  grpc::ClientContext context;
  internal::v1::ForgetRequest request;
  internal::v1::ForgetResponse response;
  std::unique_ptr<internal::v1::PrefillWorker::Stub> stub;
};

struct Flush {
  std::atomic<int> open{0};
  std::function<void(absl::Status)> done;
};

}  // namespace

void FlushCaches(const RunServices& services, const v1::FlushCacheRequest& request,
                 v1::FlushCacheResponse* response, std::function<void(absl::Status)> done) {
  std::vector<std::shared_ptr<FlushCall>> calls;
  for (const WorkerInfo& worker : services.cluster->List()) {
    if (worker.role != WorkerRole::kPrefill || worker.state != WorkerState::kReady) continue;
    const bool asked = !request.has_worker() || request.worker() == worker.ref.name ||
                       request.worker() == worker.ref.incarnation;
    if (!asked) continue;
    auto call = std::make_shared<FlushCall>();
    call->out = response->add_workers();
    call->out->set_name(worker.ref.name);
    call->request.set_everything(true);
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + kFlushTimeout));
    call->stub = internal::v1::PrefillWorker::NewStub(services.channels->To(worker.ref.address));
    calls.push_back(std::move(call));
    services.cluster->ForgetPrefixes(worker.ref.incarnation);
  }
  if (calls.empty()) {
    if (!request.has_worker()) return done(absl::OkStatus());
    return done(absl::NotFoundError(
        absl::StrCat("worker: no ready prefill worker is called \"", request.worker(), "\"")));
  }
  auto flush = std::make_shared<Flush>();
  flush->open = static_cast<int>(calls.size());
  flush->done = std::move(done);
  for (std::shared_ptr<FlushCall>& call : calls) {
    ++services.runs->alive();
    FlushCall* const c = call.get();
    c->stub->async()->Forget(&c->context, &c->request, &c->response,
                             [call = std::move(call), flush,
                              alive = services.runs->shared_alive()](const grpc::Status& status) mutable {
                               if (status.ok()) {
                                 call->out->set_freed_bytes(call->response.freed_bytes());
                               } else {
                                 call->out->set_error(status.error_message());
                               }
                               call.reset();
                               --*alive;
                               if (--flush->open == 0) flush->done(absl::OkStatus());
                             });
  }
}

}  // namespace sluice
