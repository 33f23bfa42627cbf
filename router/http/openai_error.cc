#include "router/http/openai_error.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr size_t kMaxMessageBytes = 2048;  // a client chooses parts of it

const char* TypeOf(int code) {
  switch (code) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return code < 500 ? "invalid_request_error" : "server_error";
  }
}

// UNAVAILABLE was not begun; QUEUE_FULL and the like say when. The rest is as wrong again, or was half done.
bool ShouldRetry(const absl::Status& status) {
  return absl::IsUnavailable(status) || RetryAfterOf(status).has_value();
}

}  // namespace

int HttpCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:  // 501 would be tried again
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json ErrorJson(OpenAiEndpoint endpoint, const absl::Status& status) {
  const std::string field = FieldOf(status), name = JsonNameOf(endpoint, field);
  absl::string_view rest = status.message();
  std::string message(rest);
  if (!field.empty() && absl::ConsumePrefix(&rest, field)) message = absl::StrCat(name, rest);
  if (message.size() > kMaxMessageBytes) message.resize(kMaxMessageBytes);
  std::string code = ReasonOf(status);
  if (code.empty()) code = absl::StatusCodeToString(status.code());
  return {{"error",
           {{"message", message},
            {"type", TypeOf(HttpCodeOf(status))},
            {"param", name.empty() ? Json() : Json(name)},
            {"code", absl::AsciiStrToLower(code)}}}};
}

HttpResponse ErrorResponse(OpenAiEndpoint endpoint, const absl::Status& status) {
  HttpResponse response;
  response.code = HttpCodeOf(status);
  response.body = Dump(ErrorJson(endpoint, status));
  response.headers.emplace_back("x-should-retry", ShouldRetry(status) ? "true" : "false");
  if (std::optional<absl::Duration> delay = RetryAfterOf(status)) {
    response.headers.emplace_back("Retry-After",
                                  absl::StrCat(absl::ToInt64Seconds(absl::Ceil(*delay, absl::Seconds(1)))));
  }
  if (response.code == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace sluice
