// Role: OpenAI's request JSON as our request messages. It says what the JSON means, and nothing of what may
// be asked: bounds, texts and what is not served are the parser's and the plan's, as for gRPC. Threads: pure
// functions; a large body takes a while, so never on a thread of the server.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// How the answer is to be written, as far as the request says it.
struct OpenAiShape {
  bool chat = true;
  bool stream = false;
  bool include_usage = false;  // of a stream: in a chunk of its own
};

// Each fills a message as ParseRequest does, with its errors; fields are named as our messages have them, or
// as the JSON has them where it is the JSON that is wrong.
absl::Status ReadChatCompletion(const std::string& body, v1::ChatRequest* request, OpenAiShape* shape);
absl::Status ReadCompletion(const std::string& body, v1::CompleteRequest* request, OpenAiShape* shape);

// vLLM's /tokenize: a text, or a conversation; exactly one is set.
struct TokenizeAsked {
  std::optional<v1::TokenizeRequest> text;
  std::optional<v1::RenderTemplateRequest> messages;
};
absl::StatusOr<TokenizeAsked> ReadTokenize(const std::string& body);
absl::Status ReadDetokenize(const std::string& body, v1::DetokenizeRequest* request);

}  // namespace sluice
