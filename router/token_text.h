// Role: emitted token ids to the text that a client may see now. Why it exists: text that may belong to a
// stop string or to an unfinished code point waits, and stop strings end a turn in the middle of a token.
// Threads: one owner. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/text/detokenizer.h"
#include "common/text/stop_matcher.h"

namespace sluice {

class TokenText {
 public:
  struct Piece {
    std::string text;  // valid UTF-8, may be empty
    std::vector<int32_t>
        ids;  // tokens shown with it: all so far that were not shown before; empty with no text
    std::optional<int> stop;  // the index of the stop string that ended the text
  };

  // Stop strings count from the token after the first `min_tokens`. at_start: the reply is a text of its own,
  // else it continues the prompt.
  TokenText(const Tokenizer* tokenizer, StopMatcher stops, int min_tokens, bool at_start);

  // `silent`: a stop id, which is counted and never shown.
  Piece Push(int32_t id, bool silent = false);
  // The end, unless a stop string was met: what was held back, and all tokens not shown yet.
  Piece Finish();

  const std::string& text() const { return text_; }         // all that was shown
  const std::vector<int32_t>& ids() const { return ids_; }  // all that was pushed
  // Ids that spell text() and nothing after it, for the session: whole tokens, and the rest encoded anew
  // where a stop string cut a token.
  std::vector<int32_t> TrimmedIds() const;

 private:
  Piece Show(std::string text);

  const Tokenizer* const tokenizer_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  const int min_tokens_;
  std::string text_;
  std::vector<int32_t> ids_;
  std::vector<size_t> text_end_;  // of each token, in bytes of the text before stop strings cut it
  size_t raw_bytes_ = 0;
  size_t shown_ids_ = 0;
  bool ended_by_silent_ = false;
  std::optional<int> stop_;
};

}  // namespace sluice
