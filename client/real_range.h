// Role: the bounds of an option that is a real number. Why: CLI::Range lets nan through. Threads: pure
// function.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace sluice {

inline CLI::Validator RealRange(double min, double max) {
  const CLI::Range range(min, max);
  return CLI::Validator(
      [range](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return text + " is not a number";
        return range(text);
      },
      range.get_description());
}

}  // namespace sluice
