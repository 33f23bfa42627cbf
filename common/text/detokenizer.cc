#include "common/text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "common/text/unicode.h"

namespace sluice {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer),
      options_(options),
      first_(options.at_start),
      spaces_to_strip_(options.at_start ? tokenizer->strip_leading_spaces() : 0) {}

std::string Detokenizer::Push(int32_t id) {
  if (options_.skip_special && tokenizer_->IsSpecial(id)) return "";
  if (tokenizer_->TokenBytes(id).empty()) return "";
  std::string text;
  // A run of byte-fallback tokens ends where another token comes: what is unfinished stays so.
  bool byte_token = tokenizer_->IsByteToken(id);
  if (byte_run_ && !byte_token) text = Flush();
  byte_run_ = byte_token;
  absl::string_view bytes = first_ ? tokenizer_->FirstTokenBytes(id) : tokenizer_->TokenBytes(id);
  first_ = false;
  pending_.append(bytes.data(), bytes.size());
  return text += StripStart(TakeWhole());
}

std::string Detokenizer::Flush() {
  std::string text = TakeWhole();
  if (!pending_.empty()) {
    // Byte fallback replaces byte by byte (SentencePiece's rule), byte-level text by maximal subparts.
    for (size_t i = 0; i < (byte_run_ ? pending_.size() : 1); ++i) text += kReplacementUtf8;
    pending_.clear();
  }
  return StripStart(std::move(text));
}

std::string Detokenizer::TakeWhole() {
  std::string text;
  size_t done = 0;
  while (done < pending_.size()) {
    Utf8Step step = NextUtf8(absl::string_view(pending_).substr(done));
    if (step.kind == Utf8Step::kIncomplete) break;
    if (step.kind == Utf8Step::kValid) {
      text.append(pending_, done, step.length);
    } else {
      for (size_t i = 0; i < (byte_run_ ? step.length : 1); ++i) text += kReplacementUtf8;
    }
    done += step.length;
  }
  pending_.erase(0, done);
  return text;
}

std::string Detokenizer::StripStart(std::string text) {
  size_t strip = 0;
  while (spaces_to_strip_ > 0 && strip < text.size()) {
    if (text[strip] != ' ') {
      spaces_to_strip_ = 0;
      break;
    }
    ++strip;
    --spaces_to_strip_;
  }
  return text.erase(0, strip);
}

}  // namespace sluice
