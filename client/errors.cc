#include "client/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr char kServerPayload[] = "sluice.client/server";
constexpr char kFlagPayload[] = "sluice.client/flag";
constexpr char kAnsweredPayload[] = "sluice.client/answered";

struct FieldFlag {
  const char* field;  // as the server's messages name it
  const char* flag;
};
constexpr FieldFlag kFieldFlags[] = {
    {"sampling.temperature", "--temperature"},
    {"sampling.top_p", "--top-p"},
    {"sampling.top_k", "--top-k"},
    {"sampling.seed", "--seed"},
    {"stopping.max_tokens", "--max-tokens"},
    {"stopping.stop", "--stop"},
    {"budget_tokens", "--budget"},
    {"compression", "--preset or --budget"},
    {"session_id", "--session"},
};

std::string Payload(const absl::Status& status, absl::string_view url) {
  absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::string HintOf(const absl::Status& status, const std::string& reason) {
  const std::string flag = Payload(status, kFlagPayload);
  if (reason == "CONTEXT_LENGTH_EXCEEDED") return "shorten the document (--file) or start a new session";
  if (reason == "WORKER_LOST") return "a worker went away; the turn was not stored: ask again";
  for (const FieldFlag& known : kFieldFlags) {
    if (absl::StrContains(status.message(), known.field)) return absl::StrCat("change ", known.flag);
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (status.GetPayload(kAnsweredPayload).has_value()) return "sluice doctor tells what is missing";
      return absl::StrCat("is a router serving at ", Payload(status, kServerPayload),
                          "? Start one with: sluice up   or change ", flag, "; sluice doctor looks closer");
    case absl::StatusCode::kDeadlineExceeded:
      return "raise --timeout, or shorten the document or --max-tokens";
    case absl::StatusCode::kResourceExhausted:
      // gRPC's own refusal: no later try can help.
      if (absl::StrContains(status.message(), "larger than max"))
        return "the text is too large for one message: shorten the document (--file), or raise the router's "
               "--max-message";
      if (reason == "RATE_LIMIT") return "the key is at its limit: ask again then, or have it raised";
      return "the server is busy: try again later";
    case absl::StatusCode::kAborted:
      return "another client changed this session: sluice sessions show tells its turns; or fork it";
    case absl::StatusCode::kUnauthenticated:
      if (status.GetPayload(kAnsweredPayload).has_value()) return "name a key: --api-key, or SLUICE_API_KEY";
      return "look at --tls-ca, --tls-cert and the router's --tls-cert; sluice doctor looks closer";
    case absl::StatusCode::kNotFound:
      return "sluice sessions list and sluice doctor tell the sessions and models that exist";
    case absl::StatusCode::kUnimplemented:
      return absl::StrCat("does ", flag, " name the right port? The public port is --port-base of sluice up");
    default:
      return "";
  }
}

}  // namespace

absl::Status FromServer(absl::Status status, absl::string_view address, absl::string_view flag,
                        bool answered) {
  if (status.ok()) return status;
  status.SetPayload(kServerPayload, absl::Cord(address));
  status.SetPayload(kFlagPayload, absl::Cord(flag));
  if (answered) status.SetPayload(kAnsweredPayload, absl::Cord("yes"));
  return status;
}

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

bool IsInterrupted(const absl::Status& status) {
  return absl::IsCancelled(status) && Payload(status, kServerPayload).empty();
}

std::string DescribeError(const absl::Status& status) {
  const std::string server = Payload(status, kServerPayload);
  if (server.empty()) return std::string(status.message());
  const std::string reason = ReasonOf(status);
  std::string text =
      absl::StrCat(absl::StatusCodeToString(status.code()), " from ", server, ": ", status.message());
  if (!reason.empty()) absl::StrAppend(&text, "\n  reason: ", reason);
  if (auto delay = RetryAfterOf(status)) {
    absl::StrAppend(&text, "\n  try again after: ", absl::FormatDuration(*delay));
  }
  const std::string hint = HintOf(status, reason);
  if (!hint.empty()) absl::StrAppend(&text, "\n  ", hint);
  return text;
}

}  // namespace sluice
