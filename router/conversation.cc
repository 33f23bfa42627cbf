#include "router/conversation.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "router/prompt_length.h"

namespace sluice {
namespace {

std::string TextOf(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

absl::StatusOr<std::vector<int32_t>> Tokens(const ServedModel& model,
                                            const std::vector<TextSegment>& segments) {
  size_t bytes = 0;
  for (const TextSegment& segment : segments) bytes += segment.text.size();
  SLUICE_RETURN_IF_ERROR(CheckPromptBytes(model, bytes));
  return model.tokenizer->EncodeSegments(segments);
}

// What follows the first `bytes` bytes.
std::vector<TextSegment> Tail(const std::vector<TextSegment>& segments, size_t bytes) {
  std::vector<TextSegment> tail;
  for (const TextSegment& segment : segments) {
    size_t cut = std::min(bytes, segment.text.size());
    bytes -= cut;
    if (cut < segment.text.size()) tail.push_back({segment.text.substr(cut), segment.from_content});
  }
  return tail;
}

}  // namespace

absl::StatusOr<TurnPrompt> BuildTurnPrompt(const ServedModel& model, absl::Span<const Turn> path,
                                           absl::Span<const TurnMessage> new_messages) {
  TurnPrompt prompt;
  std::vector<TurnMessage> messages;
  std::string before;  // the text that the model has seen and written
  std::vector<int32_t> history;
  for (size_t i = 0; i < path.size(); ++i) {
    messages.insert(messages.end(), path[i].messages.begin(), path[i].messages.end());
    if (i + 1 == path.size()) {
      SLUICE_ASSIGN_OR_RETURN(std::vector<TextSegment> seen, model.render(messages, true));
      before = TextOf(seen) + path[i].reply;
      history = path[i].prompt_ids;
      history.insert(history.end(), path[i].emitted_ids.begin(), path[i].emitted_ids.end());
    }
    messages.push_back({"assistant", path[i].reply});
  }
  messages.insert(messages.end(), new_messages.begin(), new_messages.end());

  SLUICE_ASSIGN_OR_RETURN(std::vector<TextSegment> segments, model.render(messages, true));
  if (!path.empty() && absl::StartsWith(TextOf(segments), before)) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> suffix, Tokens(model, Tail(segments, before.size())));
    prompt.turn_tokens = static_cast<int>(suffix.size());
    prompt.ids = std::move(history);
    prompt.ids.insert(prompt.ids.end(), suffix.begin(), suffix.end());
    return prompt;
  }
  // A first turn, or a template that writes earlier turns anew.
  SLUICE_ASSIGN_OR_RETURN(prompt.ids, Tokens(model, segments));
  size_t shorter = std::min(history.size(), prompt.ids.size());
  size_t common =
      std::mismatch(history.begin(), history.begin() + shorter, prompt.ids.begin()).first - history.begin();
  prompt.turn_tokens = static_cast<int>(prompt.ids.size() - common);
  return prompt;
}

}  // namespace sluice
