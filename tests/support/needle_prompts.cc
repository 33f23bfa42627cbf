#include "tests/support/needle_prompts.h"

#include <random>
#include <sstream>

#include "common/base/status.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

// One sentence a line; empty lines and form feeds are layout.
const std::vector<std::string>& Sentences() {
  static const auto* sentences = [] {
    auto* out = new std::vector<std::string>;
    std::stringstream lines(ReadFile(SourcePath("models/needle-14m/haystack.txt")));
    for (std::string line; std::getline(lines, line);) {
      if (line.size() > 1) out->push_back(line);
    }
    return out;
  }();
  return *sentences;
}

size_t TokensOf(const std::string& text) { return NeedleTokenizer().Encode(text)->size(); }

const char* const kAdjectives[] = {"wandering", "brave", "silent", "crimson", "ancient", "hollow", "gentle"};
const char* const kNouns[] = {"age", "harbor", "lantern", "meadow", "falcon", "orchard", "violin"};

}  // namespace

NeedlePrompt MakeNeedlePrompt(int tokens, double depth, uint32_t seed) {
  std::mt19937 random(seed);
  const std::string key = std::string(kAdjectives[random() % 7]) + "-" + kNouns[random() % 7];
  NeedlePrompt prompt;
  prompt.value = std::to_string(1000000 + random() % 9000000);
  const std::string needle = "One of the special magic numbers for " + key + " is: " + prompt.value + ".";
  const std::string before =
      "<|im_start|>user\nA special magic number is hidden within the following text. Make sure to memorize "
      "it. "
      "I will quiz you about the number afterwards.\n";
  const std::string after =
      "\nWhat is the special magic number for " + key +
      " mentioned in the provided text?<|im_end|>\n<|im_start|>assistant\nThe special magic "
      "number for " +
      key + " mentioned in the provided text is";

  const size_t room = tokens - TokensOf(before + needle + after) - 20;
  std::vector<std::string> hay;
  size_t used = 0;
  // Sentences that no longer fit are passed over, so that shorter ones fill the rest.
  for (size_t i = random() % (Sentences().size() / 2), misses = 0; misses < 20; ++i) {
    const size_t n = TokensOf(" " + Sentences()[i]);
    if (used + n > room) {
      ++misses;
      continue;
    }
    hay.push_back(Sentences()[i]);
    used += n;
  }
  hay.insert(hay.begin() + static_cast<size_t>(depth * hay.size()), needle);
  std::string text = before;
  for (size_t i = 0; i < hay.size(); ++i) text += (i == 0 ? "" : " ") + hay[i];
  prompt.ids = *NeedleTokenizer().Encode(text + after, {.parse_special = true, .add_special = false});
  SLUICE_CHECK(static_cast<int>(prompt.ids.size()) <= tokens);
  SLUICE_CHECK(static_cast<int>(prompt.ids.size()) >= tokens * 9 / 10);
  return prompt;
}

}  // namespace sluice
