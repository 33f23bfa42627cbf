// Role: the options that every server process has, and where options come from: flag, else environment
// (SLUICE_...), else --config file, else default.
// Threads: main.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace sluice {

// Before all other options: --config and --log-level. The section of a file that has the app's name (the
// binary's) is this process's own; what stands before the first section is every process's, and the own
// section goes before it.
void AddProcessFlags(CLI::App* app, std::string* log_level);

// Reads the command line, once all options are added. The exit code where the process should end now: 0 after
// --help and --print-config, 2 after a wrong flag, as the client's.
std::optional<int> ParseFlags(CLI::App* app, int argc, const char* const* argv);

// The app's section of a --config file: every option with its description; those that were given with their
// value, the others as a comment with their default.
std::string ConfigText(const CLI::App& app);

}  // namespace sluice
