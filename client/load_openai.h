// Role: any endpoint of OpenAI's chat protocol as the target of a load: POST URL/chat/completions, streamed.
// Threads: HttpClient's one for all requests.
#pragma once

#include <memory>
#include <string>

#include "client/load_target.h"

namespace sluice {

struct OpenAiOptions {
  std::string url;      // http://host:port/v1
  std::string model;    // empty: the first that the endpoint lists
  std::string api_key;  // empty: none is sent
  bool ignore_eos = true;
  absl::Duration timeout;  // of each request
};

// Asks the endpoint which models it has. A dialogue of several turns sends all that was said before with each
// turn. interrupts: outlives the target.
absl::StatusOr<std::unique_ptr<LoadTarget>> LoadOpenAi(const OpenAiOptions& options, Interrupts* interrupts);

}  // namespace sluice
