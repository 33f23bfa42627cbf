// Role: the events of a reply as OpenAI writes them: the chunks of a stream, or one object made of the same
// events. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "router/http/json_object.h"
#include "router/http/openai_request.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

class OpenAiReply {
 public:
  // created: unix seconds.
  OpenAiReply(const OpenAiShape& shape, int64_t created) : shape_(shape), created_(created) {}

  const std::string& request_id() const { return started_.request_id(); }

  // The text to send for an event, if any, with shape.stream; without, the event is kept for Whole.
  std::string Take(const v1::ChatEvent& event);
  // After Done.
  std::string Whole() const;

 private:
  struct Said {  // of one choice
    bool begun = false;
    std::string text;
    Json logprobs;   // in the endpoint's shape; null: none
    size_t end = 0;  // characters of its tokens so far
  };

  Json Frame() const;
  // A chunk with one choice. said: its text (chat: what is new of the message).
  Json Chunk(int index, Json said, Json logprobs) const;
  std::string TakeDelta(const v1::Delta& delta);
  std::string TakeDone();
  Json ChatLogprobs(const v1::Delta& delta) const;
  Json CompletionLogprobs(const v1::Delta& delta, Said* said) const;
  Json Extension() const;

  const OpenAiShape shape_;
  const int64_t created_;
  v1::Started started_;
  v1::Done done_;
  std::map<int, Said> said_;  // by choice
};

}  // namespace sluice
