// Role: a directory of one test, removed with everything in it.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/random_id.h"

namespace sluice {

class ScratchDir {
 public:
  ScratchDir() : path_(std::filesystem::temp_directory_path() / ("sluice_session_" + RandomId128())) {
    std::filesystem::create_directory(path_);
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

}  // namespace sluice
