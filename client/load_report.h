// Role: a load for people (a table, one column a preset) and for programs (JSON). Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/load_run.h"
#include "client/load_summary.h"

namespace sluice {

struct LoadColumn {
  std::string name;  // of the preset
  LoadResult result;
  LoadSummary summary;
};

// With line feeds. Below the table: errors and, where it is not what the column says, the applied method.
std::string LoadTable(const std::vector<LoadColumn>& columns, const Slo& slo, bool open_loop);

// Everything that was measured, every request with every gap.
nlohmann::ordered_json LoadJson(const LoadColumn& column, const Slo& slo);

}  // namespace sluice
