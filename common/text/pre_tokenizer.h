// Role: cutting text into the words that BPE may not merge across. The steps of tokenizer.json, in order.
// Threads: immutable; Split from any thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/regex.h"

namespace sluice {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PreTokenizerStep {
  enum Kind { kRegex, kLiteral, kDigits, kByteLevel, kMetaspace } kind;
  // kRegex, kLiteral (text `literal`), kByteLevel with its own pattern (regex set)
  std::shared_ptr<const Regex> regex = nullptr;
  std::string literal = {};
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  // kDigits: each digit alone, else runs of digits
  bool individual_digits = false;
  // kByteLevel: a space goes before text that does not start with one
  bool add_prefix_space = false;
  // kMetaspace: `literal` stands for the space and goes before the text
  enum Prepend { kAlways, kFirst, kNever } prepend = kAlways;
  bool split_words = true;

  // Everything above in one line, for the tokenizer's hash.
  std::string Describe() const;
};

// GPT-2's pattern, which ByteLevel with use_regex splits by.
extern const char kGpt2Pattern[];

class PreTokenizer {
 public:
  // The words of one text, and the memory of those that are not parts of it.
  struct Words {
    std::vector<absl::string_view> words;
    std::deque<std::string> owned;
  };

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  const std::vector<PreTokenizerStep>& steps() const { return steps_; }
  bool byte_level() const { return !steps_.empty() && steps_.back().kind == PreTokenizerStep::kByteLevel; }
  // `text` is valid UTF-8, not empty, and outlives `out`. at_start: it begins where the whole input begins.
  absl::Status Split(absl::string_view text, bool at_start, Words* out) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace sluice
