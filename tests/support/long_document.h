// Role: a long prompt with facts in it, and the question that asks for one, as the bundled model knows them.
// Threads: pure functions. SLUICE_SOURCE_DIR: where the model's prose lies.
#pragma once

#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {

// Prose with facts in it, about `characters` long.
inline std::string LongDocument(int characters, const std::vector<std::pair<std::string, std::string>>& facts,
                                uint32_t seed) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/models/needle-14m/haystack.txt");
  std::vector<std::string> sentences;
  for (std::string line; std::getline(file, line);) {
    if (line.size() > 1) sentences.push_back(line);
  }
  sentences.erase(sentences.begin(), sentences.begin() + std::mt19937(seed)() % (sentences.size() / 2));
  size_t n = 0;
  for (size_t size = 0; size < static_cast<size_t>(characters); ++n) size += sentences[n].size() + 1;
  sentences.resize(n);
  for (size_t i = 0; i < facts.size(); ++i) {
    const size_t at = sentences.size() * (2 * i + 1) / (2 * facts.size());
    sentences.insert(
        sentences.begin() + static_cast<int64_t>(at),
        absl::StrCat("One of the special magic numbers for ", facts[i].first, " is: ", facts[i].second, "."));
  }
  std::string text;
  for (const std::string& sentence : sentences) absl::StrAppend(&text, text.empty() ? "" : " ", sentence);
  return text;
}

inline std::string Question(const std::string& key) {
  return absl::StrCat("What is the special magic number for ", key,
                      " mentioned in the provided text? Answer with only the number.");
}

}  // namespace sluice
