#include "common/session/pg_rows.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/session/turn_ids.h"

namespace sluice {
namespace {

using nlohmann::json;

// Text is UTF-8 already; what is not would be marked, not thrown.
std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

absl::Status Damaged(absl::string_view what, absl::string_view id) {
  return absl::DataLossError(absl::StrCat("sessions: ", what, " of '", id, "' cannot be read"));
}

absl::StatusOr<std::vector<TurnMessage>> DecodeMessages(const std::string& text, absl::string_view turn_id) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_array()) return Damaged("messages", turn_id);
  std::vector<TurnMessage> messages;
  for (const json& one : value) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_string()) {
      return Damaged("messages", turn_id);
    }
    messages.push_back({one[0].get<std::string>(), one[1].get<std::string>()});
  }
  return messages;
}

}  // namespace

std::string EncodeMessages(const std::vector<TurnMessage>& messages) {
  json value = json::array();
  for (const TurnMessage& message : messages) value.push_back(json::array({message.role, message.content}));
  return Dump(value);
}

absl::StatusOr<Session> SessionAt(const PgRows& rows, int row) {
  Session session;
  session.id = rows.TextAt(row, 0);
  session.owner = rows.TextAt(row, 1);
  session.model = rows.TextAt(row, 2);
  session.created_unix_ms = rows.IntAt(row, 3);
  session.updated_unix_ms = rows.IntAt(row, 4);
  session.head_turn_id = rows.TextAt(row, 5);
  session.turns = static_cast<int>(rows.IntAt(row, 6));
  if (!rows.NullAt(row, 7)) session.home = SessionHome{rows.TextAt(row, 7), rows.TextAt(row, 8)};
  const json metadata = json::parse(rows.TextAt(row, 9), nullptr, false);
  if (!metadata.is_object()) return Damaged("metadata", session.id);
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) return Damaged("metadata", session.id);
    session.metadata[key] = value.get<std::string>();
  }
  session.compression_json = rows.TextAt(row, 10);
  return session;
}

absl::StatusOr<std::vector<Session>> SessionsOf(const PgRows& rows) {
  std::vector<Session> sessions;
  for (int row = 0; row < rows.size(); ++row) {
    SLUICE_ASSIGN_OR_RETURN(Session session, SessionAt(rows, row));
    sessions.push_back(std::move(session));
  }
  return sessions;
}

PgParams SessionParams(const Session& session) {
  PgParams params;
  params.Text(session.id).Text(session.owner).Text(session.model);
  params.Int(session.created_unix_ms).Int(session.updated_unix_ms);
  params.Id(session.head_turn_id).Int(session.turns);
  if (session.home.has_value()) {
    params.Text(session.home->worker).Text(session.home->incarnation);
  } else {
    params.Null().Null();
  }
  return params.Text(Dump(json(session.metadata))).Text(session.compression_json);
}

absl::StatusOr<std::vector<Turn>> TurnsOf(const PgRows& rows) {
  std::vector<Turn> turns;
  std::vector<int32_t> before;  // prompt and emitted ids of the turn before
  for (int row = 0; row < rows.size(); ++row) {
    Turn turn;
    turn.id = rows.TextAt(row, 0);
    turn.session_id = rows.TextAt(row, 1);
    turn.parent_turn_id = rows.TextAt(row, 2);
    turn.index = static_cast<int>(rows.IntAt(row, 3));
    SLUICE_ASSIGN_OR_RETURN(turn.messages, DecodeMessages(rows.TextAt(row, 4), turn.id));
    turn.reply = rows.TextAt(row, 5);
    turn.finish_reason = rows.TextAt(row, 6);
    turn.created_unix_ms = rows.IntAt(row, 7);
    absl::StatusOr<std::vector<int32_t>> prompt =
        RestorePrompt(before, rows.IntAt(row, 8), rows.TextAt(row, 9));
    if (!prompt.ok()) return Damaged(prompt.status().message(), turn.id);
    turn.prompt_ids = *std::move(prompt);
    turn.emitted_ids = DecodeIds(rows.TextAt(row, 10));
    before = turn.prompt_ids;
    before.insert(before.end(), turn.emitted_ids.begin(), turn.emitted_ids.end());
    turns.push_back(std::move(turn));
  }
  return turns;
}

}  // namespace sluice
