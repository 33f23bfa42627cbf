#include "common/rpc/status_codec.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "sluice/v1/errors.pb.h"

namespace sluice {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kQuotaFailureUrl[] = "type.googleapis.com/google.rpc.QuotaFailure";
constexpr size_t kMaxMessageBytes = 2048;
constexpr size_t kMaxDetailBytes = 4096;

void Attach(absl::Status* status, absl::string_view url, const google::protobuf::Message& detail) {
  status->SetPayload(url, absl::Cord(detail.SerializeAsString()));
}

template <class Message>
std::optional<Message> Read(const absl::Status& status, absl::string_view url) {
  absl::optional<absl::Cord> payload = status.GetPayload(url);
  Message message;
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

absl::Status NameField(absl::Status status, absl::string_view field, absl::string_view description) {
  v1::BadRequest bad;
  v1::BadRequest::FieldViolation* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  Attach(&status, kBadRequestUrl, bad);
  return status;
}

// A cut inside a UTF-8 character would make the message invalid.
std::string Cut(absl::string_view text) {
  if (text.size() <= kMaxMessageBytes) return std::string(text);
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason,
                        const std::map<std::string, std::string>& metadata) {
  if (status.ok()) return status;
  v1::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kErrorDomain);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  Attach(&status, kErrorInfoUrl, info);
  return status;
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  if (status.ok()) return status;
  v1::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  Attach(&status, kRetryInfoUrl, info);
  return status;
}

absl::Status WithQuotaFailure(absl::Status status, absl::string_view subject, absl::string_view description) {
  if (status.ok()) return status;
  v1::QuotaFailure failure;
  v1::QuotaFailure::Violation* violation = failure.add_violations();
  violation->set_subject(std::string(subject));
  violation->set_description(std::string(description));
  Attach(&status, kQuotaFailureUrl, failure);
  return status;
}

absl::Status BadField(absl::string_view field, absl::string_view description) {
  return NameField(absl::InvalidArgumentError(absl::StrCat(field, ": ", description)), field, description);
}

absl::Status FieldNotServed(absl::string_view field) {
  return NameField(absl::UnimplementedError(absl::StrCat(field, ": not served; leave it unset")), field,
                   "not served");
}

std::string ReasonOf(const absl::Status& status) {
  std::optional<v1::ErrorInfo> info = Read<v1::ErrorInfo>(status, kErrorInfoUrl);
  return info.has_value() ? info->reason() : std::string();
}

std::string FieldOf(const absl::Status& status) {
  std::optional<v1::BadRequest> bad = Read<v1::BadRequest>(status, kBadRequestUrl);
  if (!bad.has_value() || bad->field_violations_size() == 0) return std::string();
  return bad->field_violations(0).field();
}

std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  std::optional<v1::RetryInfo> info = Read<v1::RetryInfo>(status, kRetryInfoUrl);
  if (!info.has_value()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) + absl::Nanoseconds(info->retry_delay().nanos());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  auto code = static_cast<grpc::StatusCode>(status.code());  // the same numbers
  std::string message = Cut(status.message());
  v1::RpcStatus details;
  details.set_code(code);
  details.set_message(message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (payload.size() > kMaxDetailBytes) return;
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  int code = status.error_code();
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    code = static_cast<int>(absl::StatusCode::kUnknown);
  }
  absl::Status out(static_cast<absl::StatusCode>(code), status.error_message());
  v1::RpcStatus details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& detail : details.details()) {
      out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return out;
}

}  // namespace sluice
