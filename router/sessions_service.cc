#include "router/sessions_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"
#include "common/session/session_rules.h"
#include "router/history_release.h"
#include "router/request_plan.h"
#include "router/session_quota.h"

namespace sluice {
namespace {

constexpr int kDefaultPage = 50;

int64_t NowMillis() { return absl::ToUnixMillis(absl::Now()); }

absl::Status NeedId(const std::string& id) {
  return id.empty() ? BadField("session_id", "empty; name a session") : absl::OkStatus();
}

v1::Turn ToProto(const Turn& turn) {
  v1::Turn out;
  out.set_id(turn.id);
  out.set_parent_turn_id(turn.parent_turn_id);
  for (const TurnMessage& message : turn.messages) {
    v1::Message* added = out.add_messages();
    added->set_role(message.role);
    added->set_content(message.content);
  }
  out.set_reply(turn.reply);
  out.set_prompt_tokens(static_cast<int>(turn.prompt_ids.size()));
  out.set_completion_tokens(static_cast<int>(turn.emitted_ids.size()));
  out.set_finish_reason(turn.finish_reason);
  out.set_created_unix_ms(turn.created_unix_ms);
  return out;
}

absl::Status TurnRunning() {
  return WithReason(
      absl::AbortedError("session_id: a turn of this session is running; wait for it, or cancel it"),
      "TURN_IN_PROGRESS");
}

}  // namespace

template <class Work>
grpc::ServerUnaryReactor* SessionsService::OnPool(grpc::CallbackServerContext* context, Work work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<Caller> admitted = services_->authenticator->Admit(AuthorizationOf(*context));
  if (!admitted.ok()) {
    reactor->Finish(ToGrpcStatus(admitted.status()));
    return reactor;
  }
  services_->pool->Submit(
      [reactor, caller = std::make_shared<Caller>(*std::move(admitted)), work = std::move(work)]() mutable {
        const absl::Status status = work(caller->owner());
        caller->Leave();
        reactor->Finish(ToGrpcStatus(status));
      });
  return reactor;
}

v1::Session SessionsService::ToProto(const Session& session) const {
  v1::Session out;
  out.set_id(session.id);
  out.set_model(session.model);
  out.set_created_unix_ms(session.created_unix_ms);
  out.set_updated_unix_ms(session.updated_unix_ms);
  out.set_head_turn_id(session.head_turn_id);
  out.set_turns(session.turns);
  out.mutable_metadata()->insert(session.metadata.begin(), session.metadata.end());
  const absl::Duration ttl = services_->options.session_ttl;
  if (ttl != absl::InfiniteDuration()) {
    out.set_expires_unix_ms(session.updated_unix_ms + absl::ToInt64Milliseconds(ttl));
  }
  return out;
}

grpc::ServerUnaryReactor* SessionsService::CreateSession(grpc::CallbackServerContext* context,
                                                         const v1::CreateSessionRequest* request,
                                                         v1::Session* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(CheckModelName(*services_->model, request->model()));
    SLUICE_RETURN_IF_ERROR(CheckMetadata(request->metadata()));
    NewSession session;
    session.owner = owner;
    session.model = services_->model->name;
    session.metadata = {request->metadata().begin(), request->metadata().end()};
    session.created_unix_ms = NowMillis();
    absl::StatusOr<Session> created = services_->store->Create(session);
    if (created.ok()) *response = ToProto(*created);
    return NameQuota(created.status());
  });
}

grpc::ServerUnaryReactor* SessionsService::ListSessions(grpc::CallbackServerContext* context,
                                                        const v1::ListSessionsRequest* request,
                                                        v1::ListSessionsResponse* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    if (request->page_size() < 0 || request->page_size() > kMaxSessionPage) {
      return BadField("page_size",
                      absl::StrCat(request->page_size(), " is not in [0, ", kMaxSessionPage, "]"));
    }
    int page_size = request->page_size() == 0 ? kDefaultPage : request->page_size();
    if (!DecodePageToken(request->page_token()).ok()) {
      return BadField("page_token", "not one that ListSessions returned; leave it empty to start");
    }
    SLUICE_ASSIGN_OR_RETURN(SessionPage page,
                            services_->store->List(owner, request->page_token(), page_size));
    for (const Session& session : page.sessions) *response->add_sessions() = ToProto(session);
    response->set_next_page_token(page.next_page_token);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SessionsService::GetSession(grpc::CallbackServerContext* context,
                                                      const v1::GetSessionRequest* request,
                                                      v1::GetSessionResponse* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(NeedId(request->session_id()));
    SLUICE_ASSIGN_OR_RETURN(Session session, services_->store->Get(owner, request->session_id()));
    std::vector<Turn> path;
    if (!session.head_turn_id.empty()) {
      SLUICE_ASSIGN_OR_RETURN(path, services_->store->Path(session.id, session.head_turn_id));
    }
    *response->mutable_session() = ToProto(session);
    for (const Turn& turn : path) *response->add_turns() = sluice::ToProto(turn);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SessionsService::DeleteSession(grpc::CallbackServerContext* context,
                                                         const v1::DeleteSessionRequest* request,
                                                         v1::DeleteSessionResponse* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(NeedId(request->session_id()));
    SLUICE_ASSIGN_OR_RETURN(Session session, services_->store->Get(owner, request->session_id()));
    const HistoryRelease history(*services_, session);
    SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> dropped,
                            services_->store->Delete(owner, request->session_id()));
    history.Release(dropped);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SessionsService::ForkSession(grpc::CallbackServerContext* context,
                                                       const v1::ForkSessionRequest* request,
                                                       v1::Session* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(NeedId(request->session_id()));
    absl::StatusOr<Session> fork =
        services_->store->Fork(owner, request->session_id(), request->turn_id(), NowMillis());
    if (fork.ok()) *response = ToProto(*fork);
    return NameQuota(fork.status());
  });
}

grpc::ServerUnaryReactor* SessionsService::TruncateSession(grpc::CallbackServerContext* context,
                                                           const v1::TruncateSessionRequest* request,
                                                           v1::Session* response) {
  return OnPool(context, [=, this](const std::string& owner) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(NeedId(request->session_id()));
    if (request->turn_id().empty()) {
      return BadField("turn_id", "empty; name the last turn that stays, or delete the session");
    }
    SLUICE_RETURN_IF_ERROR(services_->store->Get(owner, request->session_id()).status());
    const std::optional<BusySession> busy =
        BusySession::Enter(services_->busy_sessions, request->session_id());
    if (!busy.has_value()) return TurnRunning();
    SLUICE_ASSIGN_OR_RETURN(Session session, services_->store->Get(owner, request->session_id()));
    const HistoryRelease history(*services_, session);
    SLUICE_ASSIGN_OR_RETURN(Truncated cut, services_->store->Truncate(owner, request->session_id(),
                                                                      request->turn_id(), NowMillis()));
    history.Release(cut.dropped_turn_ids);
    *response = ToProto(cut.session);
    return absl::OkStatus();
  });
}

}  // namespace sluice
