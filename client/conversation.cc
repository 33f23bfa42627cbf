#include "client/conversation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

Conversation::Conversation(const Connection* connection, const SamplingFlags* sampling)
    : connection_(connection),
      sampling_(sampling),
      inference_(v1::Inference::NewStub(connection->channel())),
      sessions_(v1::Sessions::NewStub(connection->channel())) {}

absl::Status Conversation::Continue(const std::string& session_id) {
  v1::GetSessionRequest request;
  request.set_session_id(session_id);
  SLUICE_ASSIGN_OR_RETURN(v1::GetSessionResponse reply,
                          connection_->Call(&v1::Sessions::Stub::GetSession, sessions_.get(), request));
  session_id_ = session_id;
  has_turns_ = reply.turns_size() > 0;
  return absl::OkStatus();
}

absl::Status Conversation::SetSystem(const std::string& text) {
  if (has_turns_) {
    return absl::InvalidArgumentError(absl::StrCat("--system: session ", session_id_,
                                                   " has turns already; leave --system or --session out"));
  }
  system_ = text;
  return absl::OkStatus();
}

// A session whose only turn was refused holds nothing.
void Conversation::DropSession() {
  v1::DeleteSessionRequest request;
  request.set_session_id(std::exchange(session_id_, ""));
  (void)connection_->Call(&v1::Sessions::Stub::DeleteSession, sessions_.get(), request);
}

absl::StatusOr<Generation> Conversation::Say(const std::string& text, const Console& console, bool echo) {
  const bool opens_session = session_id_.empty();
  if (opens_session) {
    SLUICE_ASSIGN_OR_RETURN(
        v1::Session session,
        connection_->Call(&v1::Sessions::Stub::CreateSession, sessions_.get(), v1::CreateSessionRequest()));
    session_id_ = session.id();
  }
  v1::ChatRequest request;
  FillRequest(*sampling_, &request);
  v1::SessionTurn* turn = request.mutable_session_turn();
  turn->set_session_id(session_id_);
  if (!has_turns_ && !system_.empty()) {
    v1::Message* message = turn->add_new_messages();
    message->set_role("system");
    message->set_content(system_);
  }
  v1::Message* message = turn->add_new_messages();
  message->set_role("user");
  message->set_content(document_.empty() ? text : absl::StrCat(document_, "\n", text));
  absl::StatusOr<Generation> generation =
      Generate(*connection_, console, echo,
               [&](grpc::ClientContext* context) { return inference_->ChatStream(context, request); });
  if (!generation.ok()) {
    if (opens_session && absl::IsInvalidArgument(generation.status())) DropSession();
    return generation;
  }
  has_turns_ = true;
  document_.clear();
  return generation;
}

absl::Status Conversation::Fork() {
  if (!has_turns_) return absl::FailedPreconditionError("/fork: nothing is said yet");
  v1::ForkSessionRequest request;
  request.set_session_id(session_id_);
  SLUICE_ASSIGN_OR_RETURN(v1::Session fork,
                          connection_->Call(&v1::Sessions::Stub::ForkSession, sessions_.get(), request));
  session_id_ = fork.id();
  return absl::OkStatus();
}

void Conversation::Reset() {
  session_id_.clear();
  document_.clear();
  has_turns_ = false;
}

}  // namespace sluice
