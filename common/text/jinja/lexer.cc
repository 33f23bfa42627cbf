#include "common/text/jinja/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/text/unicode.h"

namespace sluice::jinja {

absl::Status ErrorAt(int line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("chat template line ", line, ": ", message));
}
absl::Status UnsupportedAt(int line, absl::string_view construct) {
  return absl::UnimplementedError(
      absl::StrCat("chat template line ", line, ": ", construct, " is not supported"));
}

namespace {

// \r\n and \r become \n, and one newline at the end goes.
std::string UnifyNewlines(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (absl::EndsWith(out, "\n")) out.pop_back();
  return out;
}

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(UnifyNewlines(source)), rest_(source_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < rest_.size()) SLUICE_RETURN_IF_ERROR(Text());
    Emit(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view From(size_t i) const { return rest_.substr(std::min(i, rest_.size())); }

  void Emit(Token::Type type, absl::string_view text) { tokens_.push_back({type, std::string(text), line_}); }

  void Advance(size_t to) {
    line_ += std::count(rest_.begin() + pos_, rest_.begin() + to, '\n');
    pos_ = to;
  }

  void SkipWhiteSpace() { Advance(pos_ + From(pos_).size() - StripLeadingWhiteSpace(From(pos_)).size()); }

  // The end of a tag stands at `at`: its sign is the character before (if the tag has one there).
  void AfterTag(size_t end, char sign, bool trims_newline) {
    Advance(end);
    if (sign == '-') {
      SkipWhiteSpace();
    } else if (sign != '+' && trims_newline && absl::StartsWith(From(pos_), "\n")) {
      Advance(pos_ + 1);
    }
  }

  // What is left of text[pos_, end) before a tag with `sign`.
  absl::string_view TextBefore(size_t end, char sign, bool strips_line) const {
    absl::string_view text = rest_.substr(pos_, end - pos_);
    if (sign == '-') return StripTrailingWhiteSpace(text);
    if (sign == '+' || !strips_line) return text;
    size_t line = text.rfind('\n');
    bool line_starts_in_text = line != absl::string_view::npos;
    size_t line_begin = line_starts_in_text ? line + 1 : 0;
    bool line_starts = line_starts_in_text || pos_ == 0 || rest_[pos_ - 1] == '\n';
    if (line_starts && StripLeadingWhiteSpace(text.substr(line_begin)).empty())
      return text.substr(0, line_begin);
    return text;
  }

  // Text up to the next tag, and that tag.
  absl::Status Text() {
    size_t tag = pos_;
    while (true) {
      tag = rest_.find('{', tag);
      if (tag == absl::string_view::npos || tag + 1 >= rest_.size()) {
        Emit(Token::kText, From(pos_));
        Advance(rest_.size());
        return absl::OkStatus();
      }
      char kind = rest_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    char kind = rest_[tag + 1];
    char sign =
        tag + 2 < rest_.size() && (rest_[tag + 2] == '-' || rest_[tag + 2] == '+') ? rest_[tag + 2] : ' ';
    absl::string_view text = TextBefore(tag, sign, kind != '{');
    if (!text.empty()) Emit(Token::kText, text);
    Advance(tag + 2 + (sign != ' '));
    if (kind == '#') return Comment();
    if (kind == '%') {
      bool raw = false;
      SLUICE_RETURN_IF_ERROR(Raw(&raw));
      if (raw) return absl::OkStatus();
    }
    Emit(kind == '{' ? Token::kOutputBegin : Token::kBlockBegin, "");
    return Inside(kind == '{');
  }

  absl::Status Comment() {
    size_t end = rest_.find("#}", pos_);
    if (end == absl::string_view::npos) return ErrorAt(line_, "a comment {# has no end #}");
    AfterTag(end + 2, end > pos_ ? rest_[end - 1] : ' ', true);
    return absl::OkStatus();
  }

  // {% raw %} text {% endraw %}; pos_ is behind "{%".
  absl::Status Raw(bool* raw) {
    absl::string_view after = StripLeadingWhiteSpace(From(pos_));
    if (!absl::ConsumePrefix(&after, "raw")) return absl::OkStatus();
    after = StripLeadingWhiteSpace(after);
    char sign = absl::ConsumePrefix(&after, "-") ? '-' : ' ';
    if (!absl::ConsumePrefix(&after, "%}")) return absl::OkStatus();
    *raw = true;
    AfterTag(rest_.size() - after.size(), sign, false);
    for (size_t tag = rest_.find("{%", pos_); tag != absl::string_view::npos;
         tag = rest_.find("{%", tag + 1)) {
      absl::string_view end = From(tag + 2);
      char begin_sign = absl::ConsumePrefix(&end, "-") ? '-' : absl::ConsumePrefix(&end, "+") ? '+' : ' ';
      end = StripLeadingWhiteSpace(end);
      if (!absl::ConsumePrefix(&end, "endraw")) continue;
      end = StripLeadingWhiteSpace(end);
      char end_sign = absl::ConsumePrefix(&end, "-") ? '-' : absl::ConsumePrefix(&end, "+") ? '+' : ' ';
      if (!absl::ConsumePrefix(&end, "%}")) continue;
      absl::string_view text = TextBefore(tag, begin_sign, true);
      if (!text.empty()) Emit(Token::kText, text);
      AfterTag(rest_.size() - end.size(), end_sign, true);
      return absl::OkStatus();
    }
    return ErrorAt(line_, "{% raw %} has no {% endraw %}");
  }

  // The expression tokens of one tag, and its end.
  absl::Status Inside(bool output) {
    absl::string_view close = output ? "}}" : "%}";
    int open_brackets = 0;
    while (true) {
      SkipWhiteSpace();
      absl::string_view rest = From(pos_);
      if (rest.empty()) return ErrorAt(line_, absl::StrCat("a tag has no end ", close));
      if (open_brackets == 0) {
        char sign = rest[0] == '-' || (rest[0] == '+' && !output) ? rest[0] : ' ';
        if (absl::StartsWith(rest.substr(sign != ' '), close)) {
          Emit(output ? Token::kOutputEnd : Token::kBlockEnd, "");
          AfterTag(pos_ + (sign != ' ') + 2, sign, !output);
          return absl::OkStatus();
        }
      }
      char c = rest[0];
      if (IsNameStart(c)) {
        size_t n = 1;
        while (n < rest.size() && IsNameChar(rest[n])) ++n;
        Emit(Token::kName, rest.substr(0, n));
        Advance(pos_ + n);
      } else if (absl::ascii_isdigit(c)) {
        Number(rest);
      } else if (c == '\'' || c == '"') {
        SLUICE_RETURN_IF_ERROR(String(rest));
      } else {
        SLUICE_RETURN_IF_ERROR(Operator(rest, &open_brackets));
      }
    }
  }

  void Number(absl::string_view rest) {
    size_t n = 0;
    auto digits = [&] {
      while (n < rest.size() && (absl::ascii_isdigit(rest[n]) || (rest[n] == '_' && n > 0))) ++n;
    };
    digits();
    bool is_float = false;
    if (n + 1 < rest.size() && rest[n] == '.' && absl::ascii_isdigit(rest[n + 1])) {
      is_float = true;
      ++n;
      digits();
    }
    if (n < rest.size() && (rest[n] == 'e' || rest[n] == 'E')) {
      size_t exponent = n + 1;
      if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
      if (exponent < rest.size() && absl::ascii_isdigit(rest[exponent])) {
        is_float = true;
        n = exponent;
        digits();
      }
    }
    std::string text(rest.substr(0, n));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Emit(is_float ? Token::kFloat : Token::kInt, text);
    Advance(pos_ + n);
  }

  absl::Status Operator(absl::string_view rest, int* open_brackets) {
    static constexpr absl::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                       "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                       ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (absl::string_view op : kOperators) {
      if (!absl::StartsWith(rest, op)) continue;
      if (op == "[" || op == "(" || op == "{") ++*open_brackets;
      if (op == "]" || op == ")" || op == "}") --*open_brackets;
      if (*open_brackets < 0) return ErrorAt(line_, absl::StrCat("unexpected ", op));
      Emit(Token::kOperator, op);
      Advance(pos_ + op.size());
      return absl::OkStatus();
    }
    size_t n = NextUtf8(rest).length;
    return ErrorAt(line_, absl::StrCat("unexpected character ", rest.substr(0, n)));
  }

  // A string literal with Python's escapes.
  absl::Status String(absl::string_view rest) {
    std::string out;
    size_t i = 1;
    while (true) {
      if (i >= rest.size()) return ErrorAt(line_, "a string has no end");
      char c = rest[i];
      if (c == rest[0]) break;
      ++i;
      if (c != '\\') {
        out.push_back(c);
        continue;
      }
      if (i >= rest.size()) return ErrorAt(line_, "a string has no end");
      SLUICE_RETURN_IF_ERROR(Escape(rest, &i, &out));
    }
    Emit(Token::kString, out);
    Advance(pos_ + i + 1);
    return absl::OkStatus();
  }

  // rest[*i] is the character behind a backslash.
  absl::Status Escape(absl::string_view rest, size_t* i, std::string* out) {
    static constexpr absl::string_view kNames = "ntr\\'\"abfv", kValues = "\n\t\r\\'\"\a\b\f\v";
    char e = rest[(*i)++];
    if (size_t known = kNames.find(e); known != absl::string_view::npos) {
      out->push_back(kValues[known]);
      return absl::OkStatus();
    }
    if (e == '\n') return absl::OkStatus();
    if (e == 'N') return UnsupportedAt(line_, "\\N in a string");
    int base = e == 'x' || e == 'u' || e == 'U' ? 16 : 8;
    size_t count = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 3;
    if (base == 8) --*i;
    char32_t value = 0;
    size_t n = 0;
    for (; n < count && *i < rest.size(); ++n, ++*i) {
      char d = absl::ascii_tolower(rest[*i]);
      int digit = absl::ascii_isdigit(d) ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : 99;
      if (digit >= base) break;
      value = value * base + digit;
    }
    if (base == 8 && n == 0) {  // no escape: the backslash stays
      out->push_back('\\');
      return absl::OkStatus();
    }
    if ((base == 16 && n < count) || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      return ErrorAt(line_, "a bad escape in a string");
    AppendUtf8(value, out);
    return absl::OkStatus();
  }

  const std::string source_;
  const absl::string_view rest_;  // all of source_
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (auto bad = FirstInvalidUtf8(source))
    return absl::InvalidArgumentError(absl::StrCat("chat template: not UTF-8 at byte ", *bad));
  return Lexer(source).Run();
}

}  // namespace sluice::jinja
