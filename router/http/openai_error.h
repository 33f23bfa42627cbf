// Role: an error as OpenAI's clients read it: the HTTP code of its status, a body with message, type, the
// field in the JSON's own words, and the typed reason as `code`. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/http/http_exchange.h"
#include "router/http/json_object.h"
#include "router/http/openai_fields.h"

namespace sluice {

int HttpCodeOf(const absl::Status& status);

// {"error": {...}}
Json ErrorJson(OpenAiEndpoint endpoint, const absl::Status& status);

// With Retry-After, and with x-should-retry, which OpenAI's clients follow.
HttpResponse ErrorResponse(OpenAiEndpoint endpoint, const absl::Status& status);

// As text that may be sent: what is not UTF-8 (parts of characters, in token texts) is U+FFFD.
std::string Dump(const Json& json);

}  // namespace sluice
