#include "client/command_line.h"

#include <vector>

#include "client/command.h"
#include "client/errors.h"

namespace sluice {

int RunCommandLine(int argc, const char* const* argv, const Console& console) {
  CLI::App app("sluice: serve a model on this machine and talk to it about long documents", "sluice");
  app.set_version_flag("--version", SLUICE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  sluice up --model models/needle-14m\n"
      "  sluice chat --file report.txt\n"
      "  sluice doctor\n"
      "Exit codes: 0 ok, 1 failure, 2 usage, 130 interrupted.");
  std::vector<Command> commands;
  for (auto add : {AddUp, AddChat, AddComplete, AddBench, AddSessions, AddWorkers, AddMethods, AddTop,
                   AddKeys, AddDoctor}) {
    commands.push_back(add(&app));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, *console.out, *console.err) == 0 ? kExitOk : kExitUsage;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    absl::StatusOr<int> code = command.run(console);
    if (code.ok()) return *code;
    *console.err << "sluice " << command.app->get_name() << ": " << DescribeError(code.status()) << std::endl;
    return IsInterrupted(code.status()) ? kExitInterrupted : kExitFailure;
  }
  return kExitUsage;
}

}  // namespace sluice
