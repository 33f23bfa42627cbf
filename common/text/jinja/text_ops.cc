#include "common/text/jinja/text_ops.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

bool Contains(absl::string_view set, absl::string_view character) {
  return absl::StrContains(set, character);
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Python counts the separators 0x1C to 0x1F as white space too.
bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

// The start of the code point that ends at `end`.
size_t Before(absl::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

}  // namespace

MarkedText Strip(const MarkedText& text, std::optional<absl::string_view> chars, bool left, bool right) {
  absl::string_view all = text.text();
  auto falls = [&](size_t at, size_t length) {
    return chars ? Contains(*chars, all.substr(at, length))
                 : IsPythonSpace(NextUtf8(all.substr(at)).code_point);
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end) {
    size_t length = NextUtf8(all.substr(begin)).length;
    if (!falls(begin, length)) break;
    begin += length;
  }
  while (right && end > begin) {
    size_t at = Before(all, end);
    if (!falls(at, end - at)) break;
    end = at;
  }
  return text.Slice(begin, end);
}

std::vector<MarkedText> SplitAt(const MarkedText& text, absl::string_view separator, int64_t max_splits,
                                size_t most) {
  std::vector<MarkedText> parts;
  size_t done = 0;
  while (parts.size() <= most && (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits)) {
    size_t hit = absl::string_view(text.text()).find(separator, done);
    if (hit == absl::string_view::npos) break;
    parts.push_back(text.Slice(done, hit));
    done = hit + separator.size();
  }
  parts.push_back(text.Slice(done, text.size()));
  return parts;
}

std::vector<MarkedText> SplitWhiteSpace(const MarkedText& text, int64_t max_splits, size_t most) {
  std::vector<MarkedText> parts;
  absl::string_view all = text.text();
  size_t i = 0;
  auto skip = [&](bool space) {
    while (i < all.size()) {
      Utf8Step step = NextUtf8(all.substr(i));
      if (IsPythonSpace(step.code_point) != space) break;
      i += step.length;
    }
  };
  while (true) {
    skip(true);
    if (i == all.size() || parts.size() > most) return parts;
    size_t begin = i;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text.Slice(begin, all.size()));
      return parts;
    }
    skip(false);
    parts.push_back(text.Slice(begin, i));
  }
}

std::vector<MarkedText> SplitLines(const MarkedText& text, bool keep_ends, size_t most) {
  std::vector<MarkedText> lines;
  absl::string_view all = text.text();
  size_t begin = 0;
  for (size_t i = 0; i < all.size() && lines.size() <= most;) {
    Utf8Step step = NextUtf8(all.substr(i));
    size_t end = i;
    i += step.length;
    if (!IsLineEnd(step.code_point)) continue;
    if (step.code_point == '\r' && absl::StartsWith(all.substr(i), "\n")) ++i;
    lines.push_back(text.Slice(begin, keep_ends ? i : end));
    begin = i;
  }
  if (begin < all.size()) lines.push_back(text.Slice(begin, all.size()));
  return lines;
}

MarkedText ReplaceAll(const MarkedText& text, absl::string_view from, const MarkedText& to, int64_t count) {
  MarkedText out;
  absl::string_view all = text.text();
  size_t done = 0, look = 0;
  while (count != 0) {
    size_t hit = all.find(from, look);
    if (hit == absl::string_view::npos) break;
    out.Append(text, done, hit);
    out.Append(to);
    done = hit + from.size();
    look = done;
    if (from.empty()) {  // between all characters and at both ends
      if (hit == all.size()) break;
      look = hit + NextUtf8(all.substr(hit)).length;
    }
    if (count > 0) --count;
  }
  out.Append(text, done, all.size());
  return out;
}

MarkedText ChangeCase(const MarkedText& text, Case to) {
  MarkedText out;
  absl::string_view all = text.text();
  bool at_start = true;
  for (size_t i = 0; i < all.size();) {
    Utf8Step step = NextUtf8(all.substr(i));
    char32_t c = step.code_point;
    bool upper = to == Case::kUpper || (to != Case::kLower && at_start);
    at_start = to == Case::kTitle &&
               (IsPythonSpace(c) || absl::string_view("-({[<").find(static_cast<char>(c < 0x80 ? c : 'x')) !=
                                        absl::string_view::npos);
    std::string changed;
    if (upper && c == 0xDF) {
      AppendUtf8('S', &changed);
      AppendUtf8(to == Case::kUpper ? 'S' : 's', &changed);
    } else {
      auto code = static_cast<utf8proc_int32_t>(c);
      AppendUtf8(static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code)), &changed);
    }
    out.Append(changed, text.marked(i));
    i += step.length;
  }
  return out;
}

std::vector<MarkedText> Characters(const MarkedText& text) {
  std::vector<MarkedText> out;
  absl::string_view all = text.text();
  for (size_t i = 0; i < all.size();) {
    size_t length = NextUtf8(all.substr(i)).length;
    out.push_back(text.Slice(i, i + length));
    i += length;
  }
  return out;
}

std::vector<size_t> SliceIndices(size_t length, std::optional<int64_t> begin, std::optional<int64_t> end,
                                 int64_t step) {
  int64_t n = static_cast<int64_t>(length);
  // A bound from the end, then clamped to where the walk may start or stop.
  auto clamp = [&](int64_t at, int64_t low, int64_t high) {
    if (at < 0) at = at < -n ? -1 - n : at + n;
    return std::clamp(at, low, high);
  };
  int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  int64_t from = begin ? clamp(*begin, low, high) : step > 0 ? 0 : n - 1;
  int64_t to = end ? clamp(*end, low, high) : step > 0 ? n : -1;
  std::vector<size_t> out;
  if (step > n) step = n + 1;
  if (step < -n) step = -n - 1;
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step) out.push_back(static_cast<size_t>(i));
  return out;
}

}  // namespace sluice::jinja
