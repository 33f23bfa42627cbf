// Role: messages to prompt text, by the Jinja template that comes with the model, as Transformers renders it.
// Why our own: templates are code from outside. This subset has a step budget and an output bound, refuses
// what it does not know by name and line, and remembers which text came from messages. Threads: immutable
// after Parse; Render from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/renderer.h"
#include "common/text/marked_text.h"

namespace sluice {

struct ChatMessage {
  std::string role;  // system, user, assistant, tool: lower-case letters, digits and _, at most 32
  std::string content;
};

struct ChatTemplateInput {
  absl::Span<const ChatMessage> messages;
  std::string bos_token, eos_token;
  bool add_generation_prompt = true;
  absl::Time now;  // for strftime_now, in UTC
};

class ChatTemplate {
 public:
  // Unimplemented names a construct that is not supported, InvalidArgument a mistake; both give the line.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);

  // The prompt as segments of template text and message content, neighbours of one kind joined.
  // InvalidArgument: a bad role, content that is not UTF-8, or what the template raised.
  // ResourceExhausted: over the limits; each byte of content adds a step to max_steps.
  absl::StatusOr<std::vector<TextSegment>> Render(const ChatTemplateInput& input,
                                                  const jinja::RenderLimits& limits = {}) const;
  // The same for variables of the caller's own.
  absl::StatusOr<std::vector<TextSegment>> Render(const jinja::Dict& variables, absl::Time now,
                                                  const jinja::RenderLimits& limits = {}) const;

  // 16 hex digits of the source.
  const std::string& hash() const { return hash_; }

 private:
  std::shared_ptr<const jinja::Body> body_;
  std::string hash_;
};

// The segments as one text.
std::string JoinSegments(absl::Span<const TextSegment> segments);

}  // namespace sluice
