// Role: the regular expressions of tokenizer files, run by PCRE2.
// Why: those files are written for Oniguruma. Where the two engines read the same pattern differently,
// Compile rewrites it or refuses it by name, so that no id changes silently. Threads: Regex is immutable; a
// Matcher belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace sluice {

class Regex {
 public:
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  const std::string& pattern() const { return pattern_; }

  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    // The first match in text[from, end). *found is false if there is none. `text` is valid UTF-8 and `from`
    // a code point border. ResourceExhausted if the pattern needs too many steps.
    absl::Status Find(absl::string_view text, size_t from, bool* found, size_t* begin, size_t* end);

   private:
    struct FreeData {
      void operator()(pcre2_real_match_data_8* data) const;
    };
    const Regex& regex_;
    std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
  };

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string pattern_;  // as given
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

}  // namespace sluice
