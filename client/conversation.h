// Role: one conversation as a client sees it: a session of the router, made at the first turn, and what goes
// in front of the next message. Threads: one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/console.h"
#include "client/generation.h"
#include "client/sampling_flags.h"
#include "sluice/v1/sessions.grpc.pb.h"

namespace sluice {

class Conversation {
 public:
  // All outlive the conversation.
  Conversation(const Connection* connection, const SamplingFlags* sampling);

  // Goes on with a stored session, which must exist.
  absl::Status Continue(const std::string& session_id);
  // A system message for the first turn. InvalidArgument if a turn is stored already.
  absl::Status SetSystem(const std::string& text);
  // Goes in front of the next message that is answered: document, line feed, message.
  void SetDocument(std::string text) { document_ = std::move(text); }

  // One turn. A turn that fails or is cancelled leaves the conversation as it was, its document still to
  // come.
  absl::StatusOr<Generation> Say(const std::string& text, const Console& console, bool echo);

  // The next turn is that of a new session with the same past. FailedPrecondition before the first turn.
  absl::Status Fork();
  // The next turn begins a new session, with the same system message.
  void Reset();

  const std::string& session_id() const { return session_id_; }  // empty before the first turn

 private:
  void DropSession();

  const Connection* const connection_;
  const SamplingFlags* const sampling_;
  const std::unique_ptr<v1::Inference::Stub> inference_;
  const std::unique_ptr<v1::Sessions::Stub> sessions_;
  std::string session_id_, system_, document_;
  bool has_turns_ = false;
};

}  // namespace sluice
