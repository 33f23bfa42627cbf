// sluice complete: the model goes on with a text.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/generation.h"
#include "client/input_text.h"
#include "client/sampling_flags.h"
#include "client/turn_stats.h"
#include "common/base/status.h"

namespace sluice {
namespace {

struct Options {
  ConnectionOptions connection;
  SamplingFlags sampling;
  std::string prompt, file;
  bool json = false;
};

// The file, then the prompt; stdin where neither is given.
absl::StatusOr<std::string> PromptOf(const Options& options, const Console& console) {
  if (options.file.empty() && options.prompt.empty()) {
    if (console.in_tty)
      return absl::InvalidArgumentError("no prompt: give it as an argument, --file or stdin");
    return ReadTextFd("stdin", console.in_fd);
  }
  std::string text;
  if (!options.file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(text, ReadTextFile("--file", options.file));
  }
  if (options.prompt.empty()) return text;
  SLUICE_RETURN_IF_ERROR(CheckText("the prompt", options.prompt));
  return text.empty() ? options.prompt : absl::StrCat(text, "\n", options.prompt);
}

absl::StatusOr<int> Complete(const Options& options, const Console& console) {
  v1::CompleteRequest request;
  FillRequest(options.sampling, &request);
  SLUICE_ASSIGN_OR_RETURN(*request.mutable_prompt(), PromptOf(options, console));

  Interrupts interrupts;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                          Connection::Open(options.connection, &interrupts));
  std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(connection->channel());
  SLUICE_ASSIGN_OR_RETURN(Generation generation,
                          Generate(*connection, console, !options.json, [&](grpc::ClientContext* context) {
                            return stub->CompleteStream(context, request);
                          }));
  if (options.json) {
    *console.out << StatsJson(generation) << std::endl;
  } else {
    *console.err << StatsLine(generation.done) << std::endl;
  }
  return kExitOk;
}

}  // namespace

Command AddComplete(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("complete", "let the model go on with a text");
  auto options = std::make_shared<Options>();
  app->add_option("prompt", options->prompt, "the text (default: --file, or stdin)");
  app->add_option("--file", options->file, "text in front of the prompt")->group("Input");
  app->add_flag("--json", options->json, "one line of JSON instead of the text")->group("Output");
  AddSamplingFlags(app, &options->sampling);
  AddConnectionFlags(app, &options->connection);
  app->footer(
      "Examples:\n"
      "  sluice complete \"Once upon a time\" --max-tokens 64\n"
      "  sluice complete < prompt.txt");
  return {app, [options](const Console& console) { return Complete(*options, console); }};
}

}  // namespace sluice
