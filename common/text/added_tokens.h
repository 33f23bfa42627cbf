// Role: finds the added tokens (control tokens and other whole strings) in text before BPE sees it.
// Threads: immutable after construction; Split from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/text/marked_text.h"

namespace sluice {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;     // a control token: never recognised in marked text, never shown to a reader
  bool normalized = false;  // looked for after normalisation, else before
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // takes the white space after it
};

class AddedTokenMatcher {
 public:
  struct Piece {
    size_t begin, end;
    int32_t id;  // -1: ordinary text
  };

  AddedTokenMatcher() = default;
  // patterns[i]: what tokens[i] looks like in the text that Split gets; empty ones are never found.
  AddedTokenMatcher(absl::Span<const AddedToken> tokens, absl::Span<const std::string> patterns);

  // Cuts text into tokens and the text between, leftmost-longest. special: whether control tokens count; even
  // then one that holds a marked byte does not.
  std::vector<Piece> Split(const MarkedText& text, bool special) const;

 private:
  struct Node {
    int32_t token = -1;  // index in tokens_
    absl::flat_hash_map<unsigned char, int32_t> next;
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; node 0 is the root
};

}  // namespace sluice
