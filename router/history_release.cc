#include "router/history_release.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/session/turn_ids.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kForgetTimeout = absl::Seconds(2);

std::vector<int32_t> AllIds(const Turn& turn) {
  std::vector<int32_t> ids = turn.prompt_ids;
  ids.insert(ids.end(), turn.emitted_ids.begin(), turn.emitted_ids.end());
  return ids;
}

struct ForgetCall {
  grpc::ClientContext context;
  internal::v1::ForgetRequest request;
  internal::v1::ForgetResponse response;
  std::unique_ptr<internal::v1::PrefillWorker::Stub> stub;
};

}  // namespace

internal::v1::ForgetRequest ForgetRequestOf(const std::string& owner, absl::Span<const Turn> path,
                                            absl::Span<const std::string> dropped) {
  internal::v1::ForgetRequest request;
  request.set_owner(owner);
  request.mutable_turn_ids()->Add(dropped.begin(), dropped.end());
  if (dropped.empty() || dropped.size() > path.size()) return request;
  const size_t first = path.size() - dropped.size();
  if (path[first].id != dropped.front()) return request;  // the path has changed since it was read
  const std::vector<int32_t> kept = first == 0 ? std::vector<int32_t>() : AllIds(path[first - 1]);
  for (size_t i = first; i < path.size(); ++i) {
    std::vector<int32_t> ids = AllIds(path[i]);
    const bool goes_on =
        i + 1 < path.size() && SharedIds(ids, path[i + 1].prompt_ids) == static_cast<int64_t>(ids.size());
    if (goes_on) continue;
    internal::v1::ForgottenPrompt* prompt = request.add_prompts();
    prompt->mutable_ids()->Add(ids.begin(), ids.end());
    prompt->set_keep_tokens(static_cast<int>(SharedIds(kept, ids)));
  }
  return request;
}

HistoryRelease::HistoryRelease(const RunServices& services, const Session& session)
    : services_(services), owner_(session.owner) {
  if (!session.home.has_value() || session.head_turn_id.empty()) return;
  for (const WorkerInfo& worker : services.cluster->List()) {
    if (worker.ref.incarnation == session.home->incarnation && worker.state != WorkerState::kLost) {
      address_ = worker.ref.address;
    }
  }
  if (address_.empty()) return;
  absl::StatusOr<std::vector<Turn>> path = services.store->Path(session.id, session.head_turn_id);
  if (path.ok()) path_ = *std::move(path);
}

void HistoryRelease::Release(const std::vector<std::string>& dropped) const {
  if (address_.empty() || dropped.empty()) return;
  auto call = std::make_shared<ForgetCall>();
  call->request = ForgetRequestOf(owner_, path_, dropped);
  call->stub = internal::v1::PrefillWorker::NewStub(services_.channels->To(address_));
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + kForgetTimeout));
  ++services_.runs->alive();  // the router waits for it: a channel must not end with a call
  call->stub->async()->Forget(
      &call->context, &call->request, &call->response,
      [call, alive = services_.runs->shared_alive(), address = address_](const grpc::Status& status) mutable {
        if (!status.ok()) {
          spdlog::debug("history not released worker={} error=\"{}\"", address, status.error_message());
        }
        call.reset();
        --*alive;
      });
}

}  // namespace sluice
