// Role: one subcommand: its options, and what runs when it is the one that was typed. Each subcommand is one
// file with one Add function; command_line.cc lists them. Threads: main.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/statusor.h"
#include "client/console.h"

namespace sluice {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

struct Command {
  CLI::App* app;  // owned by the parent
  // The exit code; an error is printed by the caller, which exits with kExitFailure or kExitInterrupted.
  std::function<absl::StatusOr<int>(const Console&)> run;
};

Command AddUp(CLI::App* parent);
Command AddChat(CLI::App* parent);
Command AddComplete(CLI::App* parent);
Command AddBench(CLI::App* parent);
Command AddSessions(CLI::App* parent);
Command AddMethods(CLI::App* parent);
Command AddTop(CLI::App* parent);
Command AddWorkers(CLI::App* parent);
Command AddDoctor(CLI::App* parent);
Command AddKeys(CLI::App* parent);

}  // namespace sluice
