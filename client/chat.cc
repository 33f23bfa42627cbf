// sluice chat: a conversation over a document, typed or from --ask.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/conversation.h"
#include "client/input_text.h"
#include "client/line_reader.h"
#include "client/turn_stats.h"
#include "common/base/status.h"

namespace sluice {
namespace {

struct Options {
  ConnectionOptions connection;
  SamplingFlags sampling;
  std::string file, system, session;
  std::vector<std::string> asks;
  bool json = false;
};

constexpr char kHelp[] =
    "/file PATH  put a document in front of the next message\n"
    "/stats      what the last answer cost\n"
    "/fork       go on in a copy; the old session stays as it is\n"
    "/reset      begin a new session\n"
    "/quit       leave (Ctrl-D too)\n"
    "Ctrl-C stops an answer; at the prompt, twice leaves\n";

void PrintTurn(const Generation& generation, const Conversation& conversation, bool json,
               const Console& console) {
  if (json) {
    *console.out << StatsJson(generation, conversation.session_id()) << std::endl;
  } else {
    *console.err << StatsLine(generation.done) << std::endl;
  }
}

absl::Status SayAll(const Options& options, Conversation* conversation, const Console& console) {
  for (const std::string& ask : options.asks) {
    SLUICE_RETURN_IF_ERROR(CheckText("--ask", ask));
    SLUICE_ASSIGN_OR_RETURN(Generation generation, conversation->Say(ask, console, !options.json));
    PrintTurn(generation, *conversation, options.json, console);
  }
  return absl::OkStatus();
}

// The typed conversation; where stdin is no terminal, each of its lines is a message and an error ends it.
class Dialogue {
 public:
  Dialogue(const Options& options, Conversation* conversation, Interrupts* interrupts, const Console& console)
      : options_(options),
        conversation_(*conversation),
        console_(console),
        lines_(console.in_fd, interrupts) {}

  absl::StatusOr<int> Run() {
    if (console_.in_tty) *console_.err << "/help lists the commands" << std::endl;
    int interrupts_in_a_row = 0;
    std::string line;
    while (!quit_) {
      if (console_.in_tty) *console_.err << "> " << std::flush;
      switch (lines_.Read(&line)) {
        case LineReader::kEnd:
          if (console_.in_tty) *console_.err << std::endl;
          return kExitOk;
        case LineReader::kInterrupted:
          if (!console_.in_tty || lines_.signal() == SIGTERM || ++interrupts_in_a_row > 1)
            return Interrupted();
          *console_.err << "\nCtrl-C again leaves" << std::endl;
          continue;
        case LineReader::kLine:
          break;
      }
      interrupts_in_a_row = 0;
      absl::Status status = Handle(std::string(absl::StripAsciiWhitespace(line)));
      if (status.ok()) continue;
      if (!console_.in_tty) return status;
      interrupts_in_a_row = IsInterrupted(status) ? 1 : 0;
      *console_.err << DescribeError(status) << std::endl;
    }
    return kExitOk;
  }

 private:
  absl::Status Handle(const std::string& line) {
    if (line.empty()) return absl::OkStatus();
    if (line[0] == '/') return Obey(line);
    SLUICE_RETURN_IF_ERROR(CheckText("the message", line));
    SLUICE_ASSIGN_OR_RETURN(last_, conversation_.Say(line, console_, !options_.json));
    answered_ = true;
    if (options_.json || !console_.in_tty) PrintTurn(last_, conversation_, options_.json, console_);
    return absl::OkStatus();
  }

  absl::Status Obey(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string argument =
        space == std::string::npos ? "" : std::string(absl::StripAsciiWhitespace(line.substr(space)));
    if (command == "/quit") {
      quit_ = true;
    } else if (command == "/help") {
      *console_.err << kHelp << std::flush;
    } else if (command == "/stats") {
      if (!answered_) return absl::FailedPreconditionError("/stats: nothing is answered yet");
      *console_.err << StatsLine(last_.done) << "\nsession " << conversation_.session_id() << std::endl;
    } else if (command == "/reset") {
      conversation_.Reset();
      answered_ = false;
      *console_.err << "the next message begins a new session" << std::endl;
    } else if (command == "/fork") {
      SLUICE_RETURN_IF_ERROR(conversation_.Fork());
      *console_.err << "session " << conversation_.session_id() << std::endl;
    } else if (command == "/file") {
      if (argument.empty()) return absl::InvalidArgumentError("/file: which one? /file PATH");
      SLUICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile("/file", argument));
      *console_.err << argument << ": " << text.size() << " bytes go in front of the next message"
                    << std::endl;
      conversation_.SetDocument(std::move(text));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(command, " is no command; /help lists them"));
    }
    return absl::OkStatus();
  }

  const Options& options_;
  Conversation& conversation_;
  const Console& console_;
  LineReader lines_;
  Generation last_;
  bool answered_ = false;
  bool quit_ = false;
};

absl::StatusOr<int> Chat(const Options& options, const Console& console) {
  std::string document;
  if (!options.file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(document, ReadTextFile("--file", options.file));
  }
  if (!options.system.empty()) SLUICE_RETURN_IF_ERROR(CheckText("--system", options.system));
  Interrupts interrupts;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                          Connection::Open(options.connection, &interrupts));
  Conversation conversation(connection.get(), &options.sampling);
  if (!options.session.empty()) SLUICE_RETURN_IF_ERROR(conversation.Continue(options.session));
  if (!options.system.empty()) SLUICE_RETURN_IF_ERROR(conversation.SetSystem(options.system));
  conversation.SetDocument(std::move(document));

  absl::StatusOr<int> code = kExitOk;
  if (options.asks.empty()) {
    code = Dialogue(options, &conversation, &interrupts, console).Run();
  } else if (absl::Status status = SayAll(options, &conversation, console); !status.ok()) {
    code = status;
  }
  if (!options.json && !conversation.session_id().empty()) {
    *console.err << "session " << conversation.session_id() << "; go on with: sluice chat --session "
                 << conversation.session_id();
    if (options.connection.router != ConnectionOptions().router)
      *console.err << " --router " << options.connection.router;
    *console.err << std::endl;
  }
  return code;
}

}  // namespace

Command AddChat(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("chat", "talk with the model, about a document if you like");
  auto options = std::make_shared<Options>();
  app->add_option("--file", options->file, "document in front of the first message")->group("Input");
  app->add_option("--ask", options->asks, "a message instead of typing; repeatable, each is one turn")
      ->group("Input")
      ->allow_extra_args(false);
  AddOptionalFlag(app, "--system", options->system, "system message of a new session", "SLUICE_SYSTEM",
                  "Input");
  app->add_option("--session", options->session, "go on with this session")->group("Input");
  app->add_flag("--json", options->json,
                "one line of JSON a turn instead of the answer (statistics go to stderr otherwise)")
      ->group("Output");
  AddSamplingFlags(app, &options->sampling);
  AddConnectionFlags(app, &options->connection);
  app->footer(
      "Examples:\n"
      "  sluice chat --file report.txt --preset sluice-mt --budget 512\n"
      "  sluice chat --file report.txt --ask \"Who signed it?\" --ask \"When?\" --json");
  return {app, [options](const Console& console) { return Chat(*options, console); }};
}

}  // namespace sluice
