#include "router/reply_logprobs.h"

#include <algorithm>
#include <string>

namespace sluice {

void ReplyLogprobs::Say(int32_t id, float logprob, v1::TokenLogprob* out) const {
  out->set_token_id(id);
  out->set_logprob(logprob);
  out->set_text(std::string(tokenizer_->TokenBytes(id)));
}

void ReplyLogprobs::MoveTo(absl::Span<const int32_t> ids, v1::Delta* delta) {
  for (int32_t id : ids) {
    const internal::v1::TokenLogprobs held = std::move(held_[shown_]);
    held_.erase(shown_++);
    v1::TokenLogprobs* out = delta->add_logprobs();
    Say(id, held.chosen(), out->mutable_chosen());
    const int listed = std::min(held.top_ids_size(), held.top_size());
    for (int i = 0; i < listed; ++i) Say(held.top_ids(i), held.top(i), out->add_top());
  }
}

}  // namespace sluice
