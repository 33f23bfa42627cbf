#include "common/session/pg_connection.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice {
namespace {

std::string OneLine(const char* message) {
  std::string line(absl::StripSuffix(message, "\n"));
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// The server, or this connection's way to it, is what failed.
bool IsOutage(absl::string_view state) {
  for (absl::string_view known : {"08", "57P0", "53", "25006", "58"}) {
    if (absl::StartsWith(state, known)) return true;
  }
  return false;
}

// Undone for the sake of another transaction: serialization failure, deadlock.
bool IsConflict(absl::string_view state) { return state == "40001" || state == "40P01"; }

}  // namespace

PgParams& PgParams::Text(absl::string_view text) {
  values_.push_back({std::string(text), false, true});
  return *this;
}

PgParams& PgParams::Int(int64_t value) {
  values_.push_back({absl::StrCat(value), false, false});
  return *this;
}

PgParams& PgParams::Null() {
  values_.push_back({"", true, false});
  return *this;
}

std::string PgRows::TextAt(int row, int column) const {
  return {PQgetvalue(result_.get(), row, column),
          static_cast<size_t>(PQgetlength(result_.get(), row, column))};
}

int64_t PgRows::IntAt(int row, int column) const {
  if (PQgetlength(result_.get(), row, column) != sizeof(int64_t)) return 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(PQgetvalue(result_.get(), row, column));
  uint64_t value = 0;  // most significant byte first
  for (size_t i = 0; i < sizeof(value); ++i) value = value << 8 | bytes[i];
  return static_cast<int64_t>(value);
}

absl::StatusOr<std::unique_ptr<PgConnection>> PgConnection::Open(const std::string& uri,
                                                                 absl::Duration timeout, const Clock* clock,
                                                                 absl::Time deadline) {
  const char* keywords[] = {"dbname", "client_encoding", "fallback_application_name", nullptr};
  const char* values[] = {uri.c_str(), "UTF8", "sluice-router", nullptr};
  auto connection = std::unique_ptr<PgConnection>(
      new PgConnection(PQconnectStartParams(keywords, values, 1), clock, deadline));
  if (connection->connection_ == nullptr) return absl::ResourceExhaustedError("no memory for a connection");
  SLUICE_RETURN_IF_ERROR(connection->Connect());
  const std::string ms = absl::StrCat(absl::ToInt64Milliseconds(timeout));
  SLUICE_RETURN_IF_ERROR(connection
                             ->Run("SELECT set_config('statement_timeout', $1, false),"
                                   " set_config('idle_in_transaction_session_timeout', $1, false)",
                                   PgParams().Text(ms))
                             .status());
  return connection;
}

absl::Status PgConnection::Lost() {
  broken_ = true;
  return absl::UnavailableError(OneLine(PQerrorMessage(connection_.get())));
}

absl::Status PgConnection::Await(short events) {
  pollfd socket{PQsocket(connection_.get()), events, 0};
  for (;;) {
    const absl::Duration left = deadline_ - clock_->Now();
    if (left <= absl::ZeroDuration()) {
      broken_ = true;  // its answer would meet the next statement
      return absl::DeadlineExceededError("no answer in time");
    }
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1, 60000);
    const int ready = poll(&socket, 1, static_cast<int>(ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      broken_ = true;
      return absl::UnavailableError(absl::StrCat("poll: ", strerror(errno)));
    }
  }
}

absl::Status PgConnection::Connect() {
  if (PQstatus(connection_.get()) == CONNECTION_BAD) return Lost();
  for (PostgresPollingStatusType state = PGRES_POLLING_WRITING; state != PGRES_POLLING_OK;
       state = PQconnectPoll(connection_.get())) {
    if (state == PGRES_POLLING_FAILED) return Lost();
    SLUICE_RETURN_IF_ERROR(Await(state == PGRES_POLLING_READING ? POLLIN : POLLOUT));
  }
  if (PQsetnonblocking(connection_.get(), 1) != 0) return Lost();
  return absl::OkStatus();
}

absl::Status PgConnection::Flush() {
  for (;;) {
    const int left = PQflush(connection_.get());
    if (left < 0) return Lost();
    if (left == 0) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(Await(POLLIN | POLLOUT));
    if (PQconsumeInput(connection_.get()) == 0) return Lost();
  }
}

absl::StatusOr<PgRows> PgConnection::Receive() {
  absl::StatusOr<PgRows> rows = absl::InternalError("the server sent no result");
  for (;;) {
    while (PQisBusy(connection_.get()) != 0) {
      SLUICE_RETURN_IF_ERROR(Await(POLLIN));
      if (PQconsumeInput(connection_.get()) == 0) return Lost();
    }
    PgRows next(PQgetResult(connection_.get()));
    if (next.get() == nullptr) return rows;
    absl::Status status = StatusOf(next.get());
    if (status.ok()) {
      rows = std::move(next);
    } else {
      rows = std::move(status);
    }
  }
}

absl::Status PgConnection::StatusOf(const PGresult* result) {
  const ExecStatusType code = PQresultStatus(result);
  if (code == PGRES_TUPLES_OK || code == PGRES_COMMAND_OK) return absl::OkStatus();
  const char* field = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const std::string state = field == nullptr ? "" : field;
  const std::string text = OneLine(PQresultErrorMessage(result));
  if (PQstatus(connection_.get()) == CONNECTION_BAD || IsOutage(state)) {
    broken_ = true;
    return absl::UnavailableError(text);
  }
  if (IsConflict(state)) return absl::UnavailableError(text);
  if (state == "57014") return absl::DeadlineExceededError(text);
  if (absl::StartsWith(state, "22")) return absl::InvalidArgumentError(text);
  return absl::InternalError(absl::StrCat(text, " (SQLSTATE ", state, ")"));
}

absl::StatusOr<PgRows> PgConnection::Run(const char* sql, const PgParams& params) {
  const int n = static_cast<int>(params.values_.size());
  std::vector<const char*> values;
  std::vector<int> lengths, formats;
  for (const PgParams::Value& value : params.values_) {
    values.push_back(value.null ? nullptr : value.bytes.data());
    lengths.push_back(static_cast<int>(value.bytes.size()));
    formats.push_back(value.binary ? 1 : 0);
  }
  constexpr int kBinaryResults = 1;
  if (PQsendQueryParams(connection_.get(), sql, n, nullptr, values.data(), lengths.data(), formats.data(),
                        kBinaryResults) == 0) {
    return Lost();
  }
  SLUICE_RETURN_IF_ERROR(Flush());
  return Receive();
}

}  // namespace sluice
