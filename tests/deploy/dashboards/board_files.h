// Role: what the boards ask Prometheus for: their panels, and the metrics and labels in an expression.
// Threads: pure functions.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace sluice {

struct PanelTarget {
  std::string board, panel, kind, legend;
  std::string expression;  // as in the file, with $model, $instance and $__rate_interval
};

std::vector<std::string> BoardPaths();
std::vector<PanelTarget> ReadTargets();

// For one model and all instances; every range is `range`.
std::string Filled(std::string expression, const std::string& model, const std::string& range);
// The same with increases over exactly the last `ms` in the place of rates.
std::string OverLoad(std::string expression, const std::string& model, int64_t ms);

// metric{matchers}, as it stands in the expression.
struct Selector {
  std::string metric, matchers;
  std::vector<std::string> labels;  // in the matchers
};
std::vector<Selector> SelectorsOf(const std::string& expression);
// Of by (...) and on (...).
std::set<std::string> GroupingLabelsOf(const std::string& expression);

}  // namespace sluice
