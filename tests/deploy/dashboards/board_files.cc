#include "tests/deploy/dashboards/board_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sluice {

std::vector<std::string> BoardPaths() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/deploy/dashboards"))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<PanelTarget> ReadTargets() {
  std::vector<PanelTarget> targets;
  for (const std::string& path : BoardPaths()) {
    std::ifstream file(path);
    const nlohmann::json board = nlohmann::json::parse(file);
    for (const nlohmann::json& panel : board["panels"]) {
      if (!panel.contains("targets")) continue;
      for (const nlohmann::json& target : panel["targets"])
        targets.push_back({std::filesystem::path(path).stem().string(), panel["title"], panel["type"],
                           target["legendFormat"], target["expr"]});
    }
  }
  return targets;
}

std::string Filled(std::string expression, const std::string& model, const std::string& range) {
  absl::StrReplaceAll({{"$model", model}, {"$instance", ".*"}, {"$__rate_interval", range}}, &expression);
  return expression;
}

std::string OverLoad(std::string expression, const std::string& model, int64_t ms) {
  static const std::regex rate(R"(rate\(([^(){}]*(?:\{[^{}]*\})?)\[\$__rate_interval\]\))");
  expression = std::regex_replace(expression, rate, absl::StrCat("($1 - $1 offset ", ms, "ms)"));
  return Filled(std::move(expression), model, "1m");
}

std::vector<Selector> SelectorsOf(const std::string& expression) {
  static const std::regex selector(R"(([A-Za-z_:][\w:]*)\s*(?:\{([^{}]*)\})?)");
  static const std::regex matcher(R"((\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*")");
  std::vector<Selector> found;
  for (std::sregex_iterator it(expression.begin(), expression.end(), selector), end; it != end; ++it) {
    const std::string name = (*it)[1];
    const bool ours = absl::StartsWith(name, "sluice_") || absl::StartsWith(name, "process_") ||
                      absl::StrContains(name, ":") || name == "up";
    const bool selects = (*it)[2].matched;
    if (!ours && !selects) continue;  // a function, a keyword, a label
    Selector one{name, (*it)[2], {}};
    for (std::sregex_iterator m(one.matchers.begin(), one.matchers.end(), matcher); m != end; ++m)
      one.labels.push_back((*m)[1]);
    found.push_back(std::move(one));
  }
  return found;
}

std::set<std::string> GroupingLabelsOf(const std::string& expression) {
  static const std::regex grouping(R"(\b(?:by|on)\s*\(([^()]*)\))");
  std::set<std::string> labels;
  for (std::sregex_iterator it(expression.begin(), expression.end(), grouping), end; it != end; ++it)
    for (absl::string_view label : absl::StrSplit((*it)[1].str(), absl::ByAnyChar(", "), absl::SkipEmpty()))
      labels.emplace(label);
  return labels;
}

}  // namespace sluice
