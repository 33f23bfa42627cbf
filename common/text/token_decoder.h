// Role: how token texts become bytes again: the decoder section of tokenizer.json as plain settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct TokenDecoder {
  bool byte_level = false;                                             // GPT-2's alphabet
  bool byte_fallback = false;                                          // <0xXX> is that byte
  std::vector<std::pair<std::string, std::string>> replacements = {};  // in each token's text, in order
  int strip_leading_spaces = 0;  // at most so many spaces fall off the front of the whole text
  // Metaspace: this character is a space, and in the first token it is nothing (unless it was never
  // prepended).
  std::string metaspace = {};
  bool metaspace_first_vanishes = false;
};

}  // namespace sluice
