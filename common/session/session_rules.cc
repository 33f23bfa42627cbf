#include "common/session/session_rules.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"

namespace sluice {
namespace {

constexpr size_t kIdDigits = 32;
constexpr size_t kTimeDigits = 16;
constexpr char kQuotaPayload[] = "sluice.session.quota";

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

absl::Status QuotaReached(const std::string& subject, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kQuotaPayload, absl::Cord(subject));
  return status;
}

absl::string_view OrNone(absl::string_view turn_id) { return turn_id.empty() ? "none" : turn_id; }

}  // namespace

bool IsId(absl::string_view text) { return text.size() == kIdDigits && IsLowerHex(text); }

absl::StatusOr<Session> SessionOf(const NewSession& fresh) {
  if (fresh.metadata.size() > kMaxSessionMetadata) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: at most ", kMaxSessionMetadata, " entries, got ", fresh.metadata.size()));
  }
  Session session;
  session.id = RandomId128();
  session.owner = fresh.owner;
  session.model = fresh.model;
  session.metadata = fresh.metadata;
  session.created_unix_ms = session.updated_unix_ms = fresh.created_unix_ms;
  return session;
}

absl::Status CheckTurn(const Turn& turn) {
  if (!IsId(turn.id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("turn id: want ", kIdDigits, " lower-case hex digits, got '", turn.id, "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckPageSize(int page_size) {
  if (page_size < 1 || page_size > kMaxSessionPage) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: want 1 to ", kMaxSessionPage, ", got ", page_size));
  }
  return absl::OkStatus();
}

int64_t TurnBytes(const Turn& turn, int64_t shared_ids) {
  size_t text = turn.reply.size();
  for (const TurnMessage& message : turn.messages) text += message.role.size() + message.content.size();
  const int64_t ids = static_cast<int64_t>(turn.prompt_ids.size() + turn.emitted_ids.size()) - shared_ids;
  return static_cast<int64_t>(text) + 4 * ids;
}

std::string EncodePageToken(const Session& last) {
  return absl::StrCat(absl::Hex(static_cast<uint64_t>(last.created_unix_ms), absl::kZeroPad16), last.id);
}

absl::StatusOr<PageCursor> DecodePageToken(absl::string_view token) {
  if (token.empty()) return PageCursor{};
  uint64_t created = 0;
  if (token.size() != kTimeDigits + kIdDigits || !IsLowerHex(token) ||
      !absl::SimpleHexAtoi(token.substr(0, kTimeDigits), &created)) {
    return absl::InvalidArgumentError(
        "page_token: not one that a list call returned; leave it empty to start");
  }
  return PageCursor{static_cast<int64_t>(created), std::string(token.substr(kTimeDigits))};
}

absl::Status SessionNotFound(absl::string_view session_id) {
  return absl::NotFoundError(absl::StrCat("no session '", session_id, "'"));
}

absl::Status TurnNotOnPath(absl::string_view turn_id, absl::string_view session_id) {
  return absl::NotFoundError(absl::StrCat("no turn '", turn_id, "' in session '", session_id, "'"));
}

absl::Status TurnExists(absl::string_view turn_id) {
  return absl::AlreadyExistsError(absl::StrCat("turn '", turn_id, "' is already committed"));
}

absl::Status StaleParent(absl::string_view expected, absl::string_view head) {
  return absl::AbortedError(absl::StrCat("stale parent turn: the session is at ", OrNone(head), ", not at ",
                                         OrNone(expected), "; read it again or fork at the parent"));
}

absl::Status TooManySessions(absl::string_view owner, int limit) {
  return QuotaReached(
      absl::StrCat("sessions of owner '", owner, "'"),
      absl::StrCat("sessions: the limit of ", limit, " per owner is reached; delete one first"));
}

absl::Status TooManyBytes(absl::string_view owner, int64_t bytes, int64_t limit) {
  return QuotaReached(absl::StrCat("session bytes of owner '", owner, "'"),
                      absl::StrCat("sessions: their turns take ", bytes, " bytes, the limit is ", limit,
                                   " per owner; truncate or delete some first"));
}

std::string QuotaSubjectOf(const absl::Status& status) {
  absl::optional<absl::Cord> subject = status.GetPayload(kQuotaPayload);
  return subject.has_value() ? std::string(*subject) : std::string();
}

}  // namespace sluice
