// Role: the few questions about Unicode text that tokenizers and templates ask. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// U+FFFD in UTF-8: what replaces bytes that are not UTF-8.
inline constexpr char kReplacementUtf8[] = "\xEF\xBF\xBD";

// What stands at the front of `bytes` (not empty).
struct Utf8Step {
  enum Kind {
    kValid,      // `length` bytes are one code point
    kInvalid,    // `length` bytes can never become one: the maximal subpart that one U+FFFD replaces
    kIncomplete  // all of `bytes` is the start of a code point whose end is missing
  } kind;
  size_t length;
  char32_t code_point;  // kValid only
};
Utf8Step NextUtf8(absl::string_view bytes);

// Byte offset of the first byte that is not well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
std::optional<size_t> FirstInvalidUtf8(absl::string_view bytes);

void AppendUtf8(char32_t code_point, std::string* out);

// Unicode White_Space (what Python's and Rust's whitespace tests share).
bool IsWhiteSpace(char32_t code_point);
// General categories Nd, Nl, No.
bool IsNumeric(char32_t code_point);

// Python's str.isprintable for one character: no control, format, unassigned or separator but the space.
bool IsPrintable(char32_t code_point);

// Length of `text` in code points; `text` is valid UTF-8.
size_t CodePointCount(absl::string_view text);

// `text` without the White_Space at its end; valid UTF-8.
absl::string_view StripTrailingWhiteSpace(absl::string_view text);
absl::string_view StripLeadingWhiteSpace(absl::string_view text);

}  // namespace sluice
