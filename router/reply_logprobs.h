// Role: log-probabilities of a reply's tokens between the worker that says them and the Delta that shows the
// token, which may wait for its text. Why it exists: the flow's fence is about tokens; what is told of them
// follows it by output index. Threads: the run's strand. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <map>

#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "sluice/internal/v1/worker.pb.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

class ReplyLogprobs {
 public:
  explicit ReplyLogprobs(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // Of the token at output index `index`, which is not emitted yet; a later attempt's replace an earlier
  // one's.
  void Hold(int index, const internal::v1::TokenLogprobs& logprobs) { held_[index] = logprobs; }
  // Of the next tokens of the reply, which the delta shows.
  void MoveTo(absl::Span<const int32_t> ids, v1::Delta* delta);

 private:
  void Say(int32_t id, float logprob, v1::TokenLogprob* out) const;

  const Tokenizer* const tokenizer_;
  int shown_ = 0;
  std::map<int, internal::v1::TokenLogprobs> held_;  // by output index
};

}  // namespace sluice
