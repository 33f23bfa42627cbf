#include "router/http/openai_fields.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr OpenAiField kChat[] = {
    {"model", "model"},
    {"temperature", "sampling.temperature"},
    {"top_p", "sampling.top_p"},
    {"top_k", "sampling.top_k"},
    {"min_p", "sampling.min_p"},
    {"repetition_penalty", "sampling.repetition_penalty"},
    {"presence_penalty", "sampling.presence_penalty"},
    {"frequency_penalty", "sampling.frequency_penalty"},
    {"seed", "sampling.seed"},
    {"n", "sampling.n"},
    {"max_tokens", "stopping.max_tokens"},
    {"min_tokens", "stopping.min_tokens"},
    {"stop_token_ids", "stopping.stop_token_ids"},
    {"ignore_eos", "stopping.ignore_eos"},
    {"priority", "priority"},
    {"cache_salt", "cache_salt"},
    {"request_id", "request_id"},
    {"sluice.forced_token_ids", "sampling.forced_token_ids"},
    {"sluice.compression_loss", "output.compression_loss"},
    // Chat's own.
    {"logprobs", "output.logprobs"},
    {"top_logprobs", "output.top_logprobs"},
};
constexpr size_t kOfChatAlone = 2;

// Names of what the requests are made of, when it is not plain.
constexpr OpenAiField kRest[] = {
    {"messages", "messages.messages"},
    {"messages", "session_turn.new_messages"},
    {"prompt", "prompt_token_ids.ids"},
    {"sluice.session_id", "session_turn.session_id"},
    {"sluice.parent_turn_id", "session_turn.parent_turn_id"},
    {"sluice.compression", "compression"},
    {"sluice.slo", "slo"},
    {"stop", "stopping.stop"},
    {"logit_bias", "sampling.logit_bias"},
    {"response_format", "output.response_format"},
    {"echo", "output.echo"},
    {"prompt_logprobs", "output.prompt_logprobs"},
};

// Of the text calls and of completions, which call some fields otherwise than chat does.
constexpr OpenAiField kCompletionRest[] = {{"logprobs", "output.top_logprobs"}};
constexpr OpenAiField kTokenizeRest[] = {{"prompt", "text"}};
constexpr OpenAiField kDetokenizeRest[] = {{"tokens", "ids"}};

absl::Span<const OpenAiField> OwnNames(OpenAiEndpoint endpoint) {
  switch (endpoint) {
    case OpenAiEndpoint::kCompletion:
      return kCompletionRest;
    case OpenAiEndpoint::kTokenize:
      return kTokenizeRest;
    case OpenAiEndpoint::kDetokenize:
      return kDetokenizeRest;
    default:
      return {};
  }
}

}  // namespace

absl::Span<const OpenAiField> PlainFields(OpenAiEndpoint endpoint) {
  const absl::Span<const OpenAiField> all = kChat;
  return endpoint == OpenAiEndpoint::kChat ? all : all.subspan(0, all.size() - kOfChatAlone);
}

std::string JsonNameOf(OpenAiEndpoint endpoint, absl::string_view field) {
  for (absl::Span<const OpenAiField> names : {OwnNames(endpoint), PlainFields(endpoint), {kRest}}) {
    for (const OpenAiField& known : names) {
      const absl::string_view path = known.field;
      if (!absl::StartsWith(field, path)) continue;
      const absl::string_view rest = field.substr(path.size());
      if (rest.empty() || rest[0] == '.' || rest[0] == '[') return absl::StrCat(known.name, rest);
    }
  }
  return std::string(field);
}

}  // namespace sluice
