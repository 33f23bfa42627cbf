// Role: Python's string operations on marked text. Pure functions; all text is valid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/text/marked_text.h"

namespace sluice::jinja {

// chars: the set to strip; nullopt: white space.
MarkedText Strip(const MarkedText& text, std::optional<absl::string_view> chars, bool left, bool right);

// max_splits < 0: no limit. Stops soon after `most` parts, for callers that refuse so many anyway. Without a
// separator: at runs of white space, none at the ends.
std::vector<MarkedText> SplitAt(const MarkedText& text, absl::string_view separator, int64_t max_splits,
                                size_t most);
std::vector<MarkedText> SplitWhiteSpace(const MarkedText& text, int64_t max_splits, size_t most);
std::vector<MarkedText> SplitLines(const MarkedText& text, bool keep_ends, size_t most);

// count < 0: all.
MarkedText ReplaceAll(const MarkedText& text, absl::string_view from, const MarkedText& to, int64_t count);

enum class Case {
  kUpper,
  kLower,
  kCapitalize,  // the first character upper, the rest lower
  kTitle        // Jinja's: so for each word
};
// Simple case mappings, and ß to SS.
MarkedText ChangeCase(const MarkedText& text, Case to);

// The code points of `text`, each as text.
std::vector<MarkedText> Characters(const MarkedText& text);

// Python's [begin:end:step] over `length` elements: the indices taken, in order. step != 0.
std::vector<size_t> SliceIndices(size_t length, std::optional<int64_t> begin, std::optional<int64_t> end,
                                 int64_t step);

}  // namespace sluice::jinja
