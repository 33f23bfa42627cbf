#include "common/text/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/unicode.h"

namespace sluice {

const char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

struct Part {
  size_t begin, end;
  bool is_match;
};

// All of `text` as matches and the gaps between them.
absl::Status FindRegex(const Regex& regex, Regex::Matcher* matcher, absl::string_view text,
                       std::vector<Part>* parts) {
  size_t done = 0, from = 0;
  while (from <= text.size()) {
    bool found;
    size_t begin, end;
    SLUICE_RETURN_IF_ERROR(matcher->Find(text, from, &found, &begin, &end));
    if (!found) break;
    if (begin == end) {  // an empty match cuts but takes nothing
      if (begin > done) parts->push_back({done, begin, false});
      done = begin;
      from = begin < text.size() ? begin + NextUtf8(text.substr(begin)).length : begin + 1;
      continue;
    }
    if (begin > done) parts->push_back({done, begin, false});
    parts->push_back({begin, end, true});
    done = from = end;
  }
  if (done < text.size()) parts->push_back({done, text.size(), false});
  return absl::OkStatus();
}

void FindLiteral(absl::string_view literal, absl::string_view text, std::vector<Part>* parts) {
  size_t done = 0;
  for (size_t hit; (hit = text.find(literal, done)) != absl::string_view::npos; done = hit + literal.size()) {
    if (hit > done) parts->push_back({done, hit, false});
    parts->push_back({hit, hit + literal.size(), true});
  }
  if (done < text.size()) parts->push_back({done, text.size(), false});
}

void FindDigits(absl::string_view text, std::vector<Part>* parts) {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    Utf8Step step = NextUtf8(text.substr(i));
    if (IsNumeric(step.code_point)) {
      if (i > done) parts->push_back({done, i, false});
      parts->push_back({i, i + step.length, true});
      done = i + step.length;
    }
    i += step.length;
  }
  if (done < text.size()) parts->push_back({done, text.size(), false});
}

// Joins or drops matches as `behavior` says.
std::vector<Part> Behave(std::vector<Part> parts, SplitBehavior behavior) {
  std::vector<Part> out;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return parts;
    case SplitBehavior::kRemoved:
      for (const Part& p : parts)
        if (!p.is_match) out.push_back(p);
      return out;
    case SplitBehavior::kContiguous:
      for (const Part& p : parts) {
        if (p.is_match == previous && !out.empty()) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.is_match;
      }
      return out;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& p : parts) {
        if (p.is_match && !previous && !out.empty()) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.is_match;
      }
      return out;
    case SplitBehavior::kMergedWithNext:
      for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->is_match && !previous && !out.empty()) {
          out.back().begin = p->begin;
        } else {
          out.push_back(*p);
        }
        previous = p->is_match;
      }
      return {out.rbegin(), out.rend()};
  }
  return parts;
}

// Applies one step to one word; first: the word stands where the whole input begins.
class StepRunner {
 public:
  StepRunner(const PreTokenizerStep& step, std::deque<std::string>* owned) : step_(step), owned_(owned) {
    if (step.regex != nullptr) matcher_.emplace(*step.regex);
  }

  absl::Status Run(absl::string_view text, bool first, std::vector<absl::string_view>* words) {
    std::vector<Part> parts;
    SplitBehavior behavior = step_.behavior;
    switch (step_.kind) {
      case PreTokenizerStep::kRegex:
        SLUICE_RETURN_IF_ERROR(FindRegex(*step_.regex, &*matcher_, text, &parts));
        break;
      case PreTokenizerStep::kLiteral:
        FindLiteral(step_.literal, text, &parts);
        break;
      case PreTokenizerStep::kDigits:
        FindDigits(text, &parts);
        behavior = step_.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
        break;
      case PreTokenizerStep::kByteLevel:
        if (step_.add_prefix_space && !absl::StartsWith(text, " ")) text = Own(absl::StrCat(" ", text));
        if (step_.regex == nullptr) {
          parts.push_back({0, text.size(), false});
        } else {
          SLUICE_RETURN_IF_ERROR(FindRegex(*step_.regex, &*matcher_, text, &parts));
        }
        behavior = SplitBehavior::kIsolated;
        break;
      case PreTokenizerStep::kMetaspace:
        text = Metaspace(text, first);
        if (step_.split_words) {
          FindLiteral(step_.literal, text, &parts);
        } else {
          parts.push_back({0, text.size(), false});
        }
        behavior = SplitBehavior::kMergedWithNext;
        break;
    }
    if (step_.invert)
      for (Part& p : parts) p.is_match = !p.is_match;
    for (const Part& p : Behave(std::move(parts), behavior))
      if (p.end > p.begin) words->push_back(text.substr(p.begin, p.end - p.begin));
    return absl::OkStatus();
  }

 private:
  absl::string_view Own(std::string text) { return owned_->emplace_back(std::move(text)); }

  absl::string_view Metaspace(absl::string_view text, bool first) {
    std::string out;
    out.reserve(text.size() + 8);
    for (char c : text) {
      if (c == ' ') {
        out += step_.literal;
      } else {
        out.push_back(c);
      }
    }
    bool wanted =
        step_.prepend == PreTokenizerStep::kAlways || (step_.prepend == PreTokenizerStep::kFirst && first);
    if (wanted && !absl::StartsWith(out, step_.literal)) out.insert(0, step_.literal);
    return Own(std::move(out));
  }

  const PreTokenizerStep& step_;
  std::deque<std::string>* owned_;
  std::optional<Regex::Matcher> matcher_;
};

}  // namespace

std::string PreTokenizerStep::Describe() const {
  return absl::StrCat(kind, "|", regex != nullptr ? regex->pattern() : "", "|", literal, "|",
                      static_cast<int>(behavior), invert, individual_digits, add_prefix_space, "|", prepend,
                      split_words);
}

absl::Status PreTokenizer::Split(absl::string_view text, bool at_start, Words* out) const {
  std::vector<absl::string_view> words = {text};
  for (const PreTokenizerStep& step : steps_) {
    StepRunner runner(step, &out->owned);
    std::vector<absl::string_view> next;
    next.reserve(words.size());
    for (size_t i = 0; i < words.size(); ++i)
      SLUICE_RETURN_IF_ERROR(runner.Run(words[i], at_start && i == 0, &next));
    words = std::move(next);
  }
  out->words = std::move(words);
  return absl::OkStatus();
}

}  // namespace sluice
