#include "router/token_text.h"

#include <utility>

namespace sluice {

TokenText::TokenText(const Tokenizer* tokenizer, StopMatcher stops, int min_tokens, bool at_start)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer, {.skip_special = true, .at_start = at_start}),
      stops_(std::move(stops)),
      min_tokens_(min_tokens) {}

TokenText::Piece TokenText::Show(std::string text) {
  Piece piece;
  text_ += text;
  piece.text = std::move(text);
  if (!piece.text.empty()) {
    piece.ids.assign(ids_.begin() + shown_ids_, ids_.end());
    shown_ids_ = ids_.size();
  }
  return piece;
}

TokenText::Piece TokenText::Push(int32_t id, bool silent) {
  ids_.push_back(id);
  ended_by_silent_ = silent;
  std::string text = silent ? std::string() : detokenizer_.Push(id);
  raw_bytes_ += text.size();
  text_end_.push_back(raw_bytes_);
  if (static_cast<int>(ids_.size()) <= min_tokens_) return Show(std::move(text));
  StopMatcher::Result result = stops_.Push(text);
  Piece piece = Show(std::move(result.text));
  piece.stop = stop_ = result.stop;
  if (stop_.has_value()) {
    piece.ids.insert(piece.ids.end(), ids_.begin() + shown_ids_, ids_.end());
    shown_ids_ = ids_.size();
  }
  return piece;
}

TokenText::Piece TokenText::Finish() {
  if (stop_.has_value()) return {};
  StopMatcher::Result last = stops_.Push(detokenizer_.Flush());
  Piece piece = Show(last.text + stops_.Flush());
  piece.ids.assign(ids_.begin() + (shown_ids_ - piece.ids.size()), ids_.end());
  shown_ids_ = ids_.size();
  return piece;
}

std::vector<int32_t> TokenText::TrimmedIds() const {
  std::vector<int32_t> trimmed = ids_;
  if (!stop_.has_value()) {
    if (ended_by_silent_) trimmed.pop_back();
    return trimmed;
  }
  size_t whole = 0;
  while (whole < ids_.size() && text_end_[whole] <= text_.size()) ++whole;
  trimmed.resize(whole);
  size_t spelled = whole == 0 ? 0 : text_end_[whole - 1];
  if (spelled < text_.size()) {
    absl::StatusOr<std::vector<int32_t>> rest = tokenizer_->Encode(text_.substr(spelled));
    if (rest.ok()) trimmed.insert(trimmed.end(), rest->begin(), rest->end());
  }
  return trimmed;
}

}  // namespace sluice
