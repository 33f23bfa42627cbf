// Role: text that remembers which of its bytes came from outside (message content), so that control tokens
// are recognised only in what the template wrote. Threads: plain values.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// One run of a rendered prompt.
struct TextSegment {
  std::string text;
  bool from_content = false;  // true: text that looks like a special token stays plain text

  bool operator==(const TextSegment& o) const { return text == o.text && from_content == o.from_content; }
};

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(absl::string_view text, bool marked = false) { Append(text, marked); }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool any_marked() const { return !marks_.empty(); }
  bool marked(size_t byte) const { return !marks_.empty() && marks_[byte] != 0; }
  bool AnyMarkedIn(size_t begin, size_t end) const {
    return !marks_.empty() && std::memchr(marks_.data() + begin, 1, end - begin) != nullptr;
  }

  void Append(absl::string_view text, bool marked) {
    if (marked || any_marked()) {
      marks_.resize(text_.size(), '\0');
      marks_.append(text.size(), marked ? '\1' : '\0');
    }
    text_.append(text.data(), text.size());
  }
  void Append(const MarkedText& other, size_t begin, size_t end) {
    if (!other.AnyMarkedIn(begin, end))
      return Append(absl::string_view(other.text_).substr(begin, end - begin), false);
    marks_.resize(text_.size(), '\0');
    marks_.append(other.marks_, begin, end - begin);
    text_.append(other.text_, begin, end - begin);
  }
  void Append(const MarkedText& other) { Append(other, 0, other.size()); }
  MarkedText Slice(size_t begin, size_t end) const {
    MarkedText out;
    out.Append(*this, begin, end);
    return out;
  }

 private:
  std::string text_;
  std::string marks_;  // one byte for each of text_, or empty: nothing is marked
};

}  // namespace sluice
