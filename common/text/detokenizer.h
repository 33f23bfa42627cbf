// Role: token ids to text as they come: every piece it gives is whole, valid UTF-8.
// Why: a code point may span tokens, and a reader must never see half of one.
// Threads: one owner. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <string>

#include "common/text/tokenizer.h"

namespace sluice {

struct DetokenizerOptions {
  bool skip_special = true;
  // The first token begins a text, so SentencePiece's leading space falls off. False: it continues one.
  bool at_start = true;
};

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer, DetokenizerOptions options = {});

  // The text that became certain with this token; may be empty. Ids without a token give nothing.
  std::string Push(int32_t id);
  // The end: an unfinished code point becomes U+FFFD.
  std::string Flush();

 private:
  // The whole code points of pending_, with U+FFFD for what can never become one.
  std::string TakeWhole();
  std::string StripStart(std::string text);

  const Tokenizer* const tokenizer_;
  const DetokenizerOptions options_;
  bool first_;             // no token yet
  int spaces_to_strip_;    // left, while nothing but spaces came
  bool byte_run_ = false;  // pending_ came from <0xXX> tokens
  std::string pending_;    // the start of a code point, at most 3 bytes between calls
};

}  // namespace sluice
