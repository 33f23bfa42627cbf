#include "common/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// Oniguruma's \s; PCRE2's has U+180E too.
constexpr char kSpaceClass[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

absl::Status Refuse(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("regex: ", what, " is not supported"));
}

// The same language for PCRE2, or a refusal.
absl::StatusOr<std::string> Translate(absl::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\') {
      if (i + 1 == pattern.size()) return Refuse("a trailing backslash");
      char e = pattern[++i];
      if (e == 's') {
        absl::StrAppend(&out, in_class ? "" : "[", kSpaceClass, in_class ? "" : "]");
      } else if (e == 'S' && !in_class) {
        absl::StrAppend(&out, "[^", kSpaceClass, "]");
      } else if (absl::string_view("pPdDrntfxA").find(e) != absl::string_view::npos ||
                 ispunct(static_cast<unsigned char>(e))) {
        // The braces of \p{L} and \x{41} go along.
        bool braces = (e == 'p' || e == 'P' || e == 'x') && pattern.substr(i + 1, 1) == "{";
        size_t close = braces ? pattern.find('}', i) : i;
        if (close == absl::string_view::npos) return Refuse("an unclosed {");
        absl::StrAppend(&out, "\\", pattern.substr(i, close - i + 1));
        i = close;
      } else {
        return Refuse(absl::StrCat("\\", pattern.substr(i, 1), in_class ? " in a class" : ""));
      }
      continue;
    }
    if (in_class) {
      if (c == ']') in_class = false;
      if (c == '[') return Refuse("a class inside a class");
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') return Refuse("&& in a class");
    } else if (c == '[') {
      in_class = true;
      // A ']' or '^]' here would be a literal in one engine only.
      size_t first = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
      if (first < pattern.size() && pattern[first] == ']')
        return Refuse("an unescaped ] at the start of a class");
    } else if (c == '^' || c == '$') {
      return Refuse("an anchor");
    } else if (c == '}' && i + 1 < pattern.size() && pattern[i + 1] == '+') {
      return Refuse("{n,m}+");
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::Matcher::FreeData::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  absl::StatusOr<std::string> translated = Translate(pattern);
  if (!translated.ok()) return translated.status();
  int error = 0;
  size_t offset = 0;
  Regex regex;
  regex.pattern_ = std::string(pattern);
  regex.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (regex.code_ == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat("regex: ", message, " near byte ", offset));
  }
  pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs: same matches
  return regex;
}

Regex::Matcher::Matcher(const Regex& regex)
    : regex_(regex), data_(pcre2_match_data_create_from_pattern(regex.code_.get(), nullptr)) {}

absl::Status Regex::Matcher::Find(absl::string_view text, size_t from, bool* found, size_t* begin,
                                  size_t* end) {
  auto match = [&](uint32_t options) {
    return pcre2_match(regex_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data_.get(), nullptr);
  };
  int rc = match(0);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_JIT);
  *found = rc >= 0;
  if (rc == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
  if (rc < 0)
    return absl::ResourceExhaustedError(
        absl::StrCat("regex: PCRE2 error ", rc, " at byte ", from, " of a piece"));
  const size_t* offsets = pcre2_get_ovector_pointer(data_.get());
  *begin = offsets[0];
  *end = offsets[1];
  return absl::OkStatus();
}

}  // namespace sluice
