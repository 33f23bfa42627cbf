// Role: the names of OpenAI's requests (and vLLM's, where OpenAI has none) and the fields of our messages
// that they are: one list, read forwards for requests and backwards for errors. Threads: constants and pure
// functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

enum class OpenAiEndpoint { kChat, kCompletion, kTokenize, kDetokenize, kNone };

struct OpenAiField {
  const char* name;   // in the JSON object; "sluice.x" is x in the object `sluice`
  const char* field;  // its path in ChatRequest and CompleteRequest
};

// Those that are one scalar, or a list of scalars, on both sides.
absl::Span<const OpenAiField> PlainFields(OpenAiEndpoint endpoint);

// What a client calls the field that an error names.
std::string JsonNameOf(OpenAiEndpoint endpoint, absl::string_view field);

}  // namespace sluice
