// Role: a load as one picture, with no help from other programs: how TTFT, TPOT and E2EL are spread, and how
// many requests were in flight, a line a preset. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/load_report.h"

namespace sluice {

// An SVG document.
std::string LoadPlot(const std::vector<LoadColumn>& columns, absl::string_view title);

}  // namespace sluice
