// Role: the files that the tests of common/text read.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "common/text/tokenizer.h"

namespace sluice {

// `path` from the root of the source tree.
inline std::string ReadSourceFile(const std::string& path) {
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::unique_ptr<Tokenizer> LoadBundledTokenizer() {
  auto tokenizer = Tokenizer::FromJson(ReadSourceFile("models/needle-14m/tokenizer.json"),
                                       ReadSourceFile("models/needle-14m/tokenizer_config.json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(tokenizer).value();
}

}  // namespace sluice
