// Role: cases of tests/golden/compression, each what is asked beside what an independent program answers.
#pragma once

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace sluice {

inline nlohmann::json GoldenCases(const std::string& file) {
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/golden/compression/" + file);
  return nlohmann::json::parse(in);
}

// For messages: the case without its answers.
inline std::string AskedIn(nlohmann::json golden_case) {
  for (const char* answer : {"keep", "go_on", "out"}) golden_case.erase(answer);
  return golden_case.dump();
}

}  // namespace sluice
