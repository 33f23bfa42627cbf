#include "router/prompt_length.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

absl::Status TooLong(absl::string_view prompt, size_t tokens, int context) {
  return WithReason(
      BadField("prompt", absl::StrCat(prompt, " leave no room in the context of ", context, "; shorten it")),
      "CONTEXT_LENGTH_EXCEEDED",
      {{"prompt_tokens", absl::StrCat(tokens)}, {"context_tokens", absl::StrCat(context)}});
}

}  // namespace

absl::Status CheckPromptTokens(const ServedModel& model, size_t tokens) {
  if (tokens < static_cast<size_t>(model.shape.context)) return absl::OkStatus();
  return TooLong(absl::StrCat(tokens, " tokens"), tokens, model.shape.context);
}

absl::Status CheckPromptBytes(const ServedModel& model, size_t bytes) {
  const size_t least = model.tokenizer->LeastTokens(bytes);
  if (least < static_cast<size_t>(model.shape.context)) return absl::OkStatus();
  return TooLong(absl::StrCat(bytes, " bytes, at least ", least, " tokens,"), least, model.shape.context);
}

}  // namespace sluice
