// Role: retrieval prompts for the bundled model: prose with one sentence hidden in it, in the words of
// RULER's niah_single_2, closed by RULER's answer prefix (models/needle-14m/README.md says why).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct NeedlePrompt {
  std::vector<int32_t> ids;
  std::string value;  // seven digits: the tokens that answer it are " " + value
};

// At most `tokens` tokens, at least 90 % of them. depth: of the hidden sentence, 0 (start) to 1 (end).
NeedlePrompt MakeNeedlePrompt(int tokens, double depth, uint32_t seed);

}  // namespace sluice
