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
  int n = 1;
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
  if (options.n > 1) request.mutable_sampling()->set_n(options.n);
  SLUICE_ASSIGN_OR_RETURN(*request.mutable_prompt(), PromptOf(options, console));

  Interrupts interrupts;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                          Connection::Open(options.connection, &interrupts));
  std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(connection->channel());
  const auto head = [&](int choice) {
    if (options.n > 1 && !options.json) {
      *console.err << "--- " << choice << " of " << options.n << std::endl;
    }
  };
  head(1);
  SLUICE_ASSIGN_OR_RETURN(Generation generation,
                          Generate(*connection, console, !options.json, [&](grpc::ClientContext* context) {
                            return stub->CompleteStream(context, request);
                          }));
  if (options.json) {
    *console.out << StatsJson(generation) << std::endl;
  } else {
    for (size_t i = 0; i < generation.others.size(); ++i) {
      head(static_cast<int>(i) + 2);
      *console.out << TextFor(console, generation.others[i]) << std::endl;
    }
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
  app->add_option("--n", options->n, "answers; at temperature 0 they are all the same")
      ->check(CLI::Range(1, 8))
      ->group("Sampling");
  app->add_flag("--json", options->json, "one line of JSON instead of the text")->group("Output");
  AddSamplingFlags(app, &options->sampling);
  AddConnectionFlags(app, &options->connection);
  app->footer(
      "Examples:\n"
      "  sluice complete \"Once upon a time\" --max-tokens 64\n"
      "  sluice complete \"My favourite colour is\" --n 3 --temperature 1\n"
      "  sluice complete < prompt.txt");
  return {app, [options](const Console& console) { return Complete(*options, console); }};
}

}  // namespace sluice
