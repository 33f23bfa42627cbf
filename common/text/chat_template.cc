#include "common/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/parser.h"
#include "common/text/stable_hash.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr size_t kMaxRoleBytes = 32;

// Templates build control tokens out of roles ('<|' + role + '|>'), so a role counts as template text and
// must be too plain to forge one.
bool IsPlainRole(absl::string_view role) {
  return !role.empty() && role.size() <= kMaxRoleBytes && std::all_of(role.begin(), role.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

std::vector<TextSegment> Segments(const MarkedText& text) {
  std::vector<TextSegment> segments;
  absl::string_view all = text.text();
  for (size_t begin = 0; begin < all.size();) {
    bool marked = text.marked(begin);
    size_t end = begin + 1;
    while (end < all.size() && text.marked(end) == marked) ++end;
    segments.push_back({std::string(all.substr(begin, end - begin)), marked});
    begin = end;
  }
  return segments;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) {
  if (source.size() > kMaxSourceBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("chat template: ", source.size(), " bytes, at most ", kMaxSourceBytes));
  SLUICE_ASSIGN_OR_RETURN(jinja::Body body, jinja::Parse(source));
  ChatTemplate chat;
  chat.body_ = std::make_shared<const jinja::Body>(std::move(body));
  StableHash hash;
  hash.Add(source);
  chat.hash_ = hash.Hex();
  return chat;
}

absl::StatusOr<std::vector<TextSegment>> ChatTemplate::Render(const ChatTemplateInput& input,
                                                              const jinja::RenderLimits& limits) const {
  using jinja::Value;
  jinja::RenderLimits widened = limits;
  jinja::List messages;
  for (size_t i = 0; i < input.messages.size(); ++i) {
    const ChatMessage& message = input.messages[i];
    if (!IsPlainRole(message.role))
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role: expected lower-case letters, digits and _"));
    if (auto bad = FirstInvalidUtf8(message.content))
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].content: not UTF-8 at byte ", *bad));
    widened.max_steps += static_cast<int64_t>(message.content.size());
    jinja::Dict fields;
    fields.entries.emplace_back(Value("role"), Value(absl::string_view(message.role)));
    fields.entries.emplace_back(Value("content"), Value(MarkedText(message.content, /*marked=*/true)));
    messages.items.emplace_back(std::move(fields));
  }
  jinja::Dict variables;
  variables.entries.emplace_back(Value("messages"), Value(std::move(messages)));
  variables.entries.emplace_back(Value("bos_token"), Value(absl::string_view(input.bos_token)));
  variables.entries.emplace_back(Value("eos_token"), Value(absl::string_view(input.eos_token)));
  variables.entries.emplace_back(Value("add_generation_prompt"), Value(input.add_generation_prompt));
  variables.entries.emplace_back(Value("tools"), Value());
  variables.entries.emplace_back(Value("documents"), Value());
  return Render(variables, input.now, widened);
}

absl::StatusOr<std::vector<TextSegment>> ChatTemplate::Render(const jinja::Dict& variables, absl::Time now,
                                                              const jinja::RenderLimits& limits) const {
  SLUICE_ASSIGN_OR_RETURN(MarkedText text, jinja::Render(*body_, variables, now, limits));
  return Segments(text);
}

std::string JoinSegments(absl::Span<const TextSegment> segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

}  // namespace sluice
