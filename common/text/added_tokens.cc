#include "common/text/added_tokens.h"

#include <algorithm>

#include "common/text/unicode.h"

namespace sluice {

AddedTokenMatcher::AddedTokenMatcher(absl::Span<const AddedToken> tokens,
                                     absl::Span<const std::string> patterns)
    : tokens_(tokens.begin(), tokens.end()), nodes_(1) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (patterns[i].empty()) continue;
    int32_t at = 0;
    for (unsigned char c : patterns[i]) {
      auto [it, inserted] = nodes_[at].next.try_emplace(c, static_cast<int32_t>(nodes_.size()));
      at = it->second;
      if (inserted) nodes_.emplace_back();
    }
    nodes_[at].token = static_cast<int32_t>(i);
  }
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::Split(const MarkedText& marked, bool special) const {
  std::vector<Piece> pieces;
  const std::string& text = marked.text();
  size_t done = 0;  // everything before is in pieces
  size_t i = nodes_.empty() || nodes_[0].next.empty() ? text.size() : 0;
  while (i < text.size()) {
    const AddedToken* longest = nullptr;
    size_t longest_end = 0;
    int32_t at = 0;
    for (size_t j = i; j < text.size(); ++j) {
      auto it = nodes_[at].next.find(static_cast<unsigned char>(text[j]));
      if (it == nodes_[at].next.end()) break;
      at = it->second;
      if (nodes_[at].token < 0) continue;
      const AddedToken& token = tokens_[nodes_[at].token];
      if (token.special && (!special || marked.AnyMarkedIn(i, j + 1))) continue;
      longest = &token;
      longest_end = j + 1;
    }
    if (longest == nullptr) {
      ++i;
      continue;
    }
    absl::string_view view = text;
    size_t begin = i, end = longest_end;
    if (longest->lstrip) begin = std::max(done, StripTrailingWhiteSpace(view.substr(0, begin)).size());
    if (longest->rstrip) end = text.size() - StripLeadingWhiteSpace(view.substr(end)).size();
    if (begin > done) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, longest->id});
    done = i = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace sluice
