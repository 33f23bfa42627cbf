// Role: what a load is put on: a model, and dialogues with it.
// Why abstract: a router over gRPC and any OpenAI endpoint over HTTP are loaded and measured by the same
// code. Threads: one caller; `done` comes from a thread of the target's and may not call back into it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/interrupts.h"
#include "client/load_record.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// What every request of a run has.
struct LoadSettings {
  std::string preset;  // empty: the server's own
  std::optional<int> budget;
  int output_tokens = 128;  // where the dialogue says nothing else
};

// A dialogue under way. One call at a time: the next one, or the end of the object, after `done`.
class LoadConversation {
 public:
  using Done = std::function<void()>;
  virtual ~LoadConversation() = default;

  // Before the first of several turns; where it fails, so will they. After `done`, Opened() tells.
  virtual void Open(Done done) = 0;
  virtual absl::Status Opened() const = 0;
  // The next turn, which stands on those before it.
  virtual void Send(v1::Messages messages, std::optional<int> output_tokens, Done done) = 0;
  // Of the last turn, after its `done`: all but arrival, dialogue and turn.
  virtual RequestRecord& record() = 0;
  // Lets go of what Open made.
  virtual void Close(Done done) = 0;

  // What is under way ends soon. Between calls: nothing.
  virtual void Cancel() = 0;
};

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  virtual const std::string& address() const = 0;
  virtual const std::string& model() const = 0;
  virtual int64_t context() const = 0;  // tokens that the model reads; 0: unknown
  virtual Interrupts* interrupts() const = 0;
  // Of a prompt with this one message.
  virtual absl::StatusOr<int> CountTokens(const std::string& text) const = 0;
  // settings outlive the conversation, as the target does; times of its records count from `origin`.
  virtual std::unique_ptr<LoadConversation> Begin(const LoadSettings& settings, absl::Time origin) const = 0;
};

}  // namespace sluice
