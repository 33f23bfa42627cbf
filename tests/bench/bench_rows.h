// Role: the figures of a bench as a JSON file: facts about the run, then one object a row. Why:
// target_table.py and whoever compares runs read it; the file is whole after every row, so that a run cut
// short keeps what it measured. Threads: one.
#pragma once

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sluice {

class BenchRows {
 public:
  // path empty: rows go nowhere.
  BenchRows(std::string path, nlohmann::json about) : path_(std::move(path)), all_(std::move(about)) {
    all_["rows"] = nlohmann::json::array();
  }
  void Add(nlohmann::json row) {
    all_["rows"].push_back(std::move(row));
    if (path_.empty()) return;
    std::ofstream(path_ + ".part") << all_.dump(1) << '\n';
    std::rename((path_ + ".part").c_str(), path_.c_str());
  }

 private:
  const std::string path_;
  nlohmann::json all_;
};

}  // namespace sluice
