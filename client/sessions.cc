// sluice sessions: list, show, delete, fork, truncate.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/command.h"
#include "client/connection.h"
#include "common/base/status.h"
#include "common/text/unicode.h"
#include "sluice/v1/sessions.grpc.pb.h"

namespace sluice {
namespace {

struct Options {
  ConnectionOptions connection;
  std::string id, turn;
  bool full = false;
};

using Run = absl::StatusOr<int> (*)(const Options&, const Connection&, v1::Sessions::Stub*, const Console&);

constexpr size_t kShownCharacters = 400;

std::string When(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

// The start of a long text, and how long it is.
std::string Shorten(const std::string& text, bool full) {
  const size_t length = CodePointCount(text);
  if (full || length <= kShownCharacters) return text;
  absl::string_view rest = text;
  for (size_t i = 0; i < kShownCharacters; ++i) rest.remove_prefix(NextUtf8(rest).length);
  return absl::StrCat(absl::string_view(text).substr(0, text.size() - rest.size()), "... (", length,
                      " characters; --full shows them)");
}

absl::StatusOr<int> List(const Options&, const Connection& connection, v1::Sessions::Stub* stub,
                         const Console& console) {
  v1::ListSessionsRequest request;
  *console.out << absl::StrFormat("%-32s  %5s  %-19s  %s\n", "session", "turns", "changed", "model");
  do {
    SLUICE_ASSIGN_OR_RETURN(v1::ListSessionsResponse page,
                            connection.Call(&v1::Sessions::Stub::ListSessions, stub, request));
    for (const v1::Session& session : page.sessions()) {
      *console.out << absl::StrFormat("%-32s  %5d  %-19s  %s\n", session.id(), session.turns(),
                                      When(session.updated_unix_ms()), TextFor(console, session.model()));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  *console.out << std::flush;
  return kExitOk;
}

absl::StatusOr<int> Show(const Options& options, const Connection& connection, v1::Sessions::Stub* stub,
                         const Console& console) {
  v1::GetSessionRequest request;
  request.set_session_id(options.id);
  SLUICE_ASSIGN_OR_RETURN(v1::GetSessionResponse reply,
                          connection.Call(&v1::Sessions::Stub::GetSession, stub, request));
  *console.out << "session " << reply.session().id() << ", model "
               << TextFor(console, reply.session().model()) << ", made "
               << When(reply.session().created_unix_ms()) << "\n";
  for (const v1::Turn& turn : reply.turns()) {
    *console.out << "\nturn " << turn.id() << ": " << turn.prompt_tokens() << " tokens in, "
                 << turn.completion_tokens() << " out, " << turn.finish_reason() << "\n";
    for (const v1::Message& message : turn.messages()) {
      *console.out << message.role() << ": " << TextFor(console, Shorten(message.content(), options.full))
                   << "\n";
    }
    *console.out << "assistant: " << TextFor(console, Shorten(turn.reply(), options.full)) << "\n";
  }
  *console.out << std::flush;
  return kExitOk;
}

absl::StatusOr<int> Delete(const Options& options, const Connection& connection, v1::Sessions::Stub* stub,
                           const Console& console) {
  v1::DeleteSessionRequest request;
  request.set_session_id(options.id);
  SLUICE_RETURN_IF_ERROR(connection.Call(&v1::Sessions::Stub::DeleteSession, stub, request).status());
  *console.err << "deleted " << options.id << std::endl;
  return kExitOk;
}

absl::StatusOr<int> Fork(const Options& options, const Connection& connection, v1::Sessions::Stub* stub,
                         const Console& console) {
  v1::ForkSessionRequest request;
  request.set_session_id(options.id);
  if (!options.turn.empty()) request.set_turn_id(options.turn);
  SLUICE_ASSIGN_OR_RETURN(v1::Session fork, connection.Call(&v1::Sessions::Stub::ForkSession, stub, request));
  *console.out << fork.id() << std::endl;
  return kExitOk;
}

absl::StatusOr<int> Truncate(const Options& options, const Connection& connection, v1::Sessions::Stub* stub,
                             const Console& console) {
  v1::TruncateSessionRequest request;
  request.set_session_id(options.id);
  request.set_turn_id(options.turn);
  SLUICE_ASSIGN_OR_RETURN(v1::Session cut,
                          connection.Call(&v1::Sessions::Stub::TruncateSession, stub, request));
  *console.err << "session " << cut.id() << " has " << cut.turns() << (cut.turns() == 1 ? " turn" : " turns")
               << std::endl;
  return kExitOk;
}

}  // namespace

Command AddSessions(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("sessions", "list, show, delete, fork or cut conversations");
  app->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto run = std::make_shared<Run>(nullptr);
  auto add = [&](const char* name, const char* help, Run body) {
    CLI::App* command = app->add_subcommand(name, help);
    command->callback([run, body] { *run = body; });
    AddConnectionFlags(command, &options->connection);
    return command;
  };
  auto with_id = [&](CLI::App* command) {
    command->add_option("id", options->id, "the session")->required();
    return command;
  };
  add("list", "all sessions", List);
  with_id(add("show", "the turns of one session", Show))
      ->add_flag("--full", options->full, "long messages too, in full");
  with_id(add("delete", "forget one session", Delete));
  with_id(add("fork", "a new session with the same past; prints its id", Fork))
      ->add_option("--turn", options->turn, "the turn to fork after (default: the last)");
  with_id(add("truncate", "drop the turns after one", Truncate))
      ->add_option("turn", options->turn, "the last turn that stays; show lists them")
      ->required();
  app->footer("Example:\n  sluice chat --session $(sluice sessions fork 0123456789abcdef0123456789abcdef)");
  return {app, [options, run](const Console& console) -> absl::StatusOr<int> {
            SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                                    Connection::Open(options->connection, nullptr));
            std::unique_ptr<v1::Sessions::Stub> stub = v1::Sessions::NewStub(connection->channel());
            return (*run)(*options, *connection, stub.get(), console);
          }};
}

}  // namespace sluice
