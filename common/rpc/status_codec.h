// Role: absl::Status <-> grpc::Status, with the details of google.rpc (ErrorInfo, RetryInfo, BadRequest,
// QuotaFailure). In
// an absl::Status they are payloads, so a library can hand them up without knowing gRPC; on the wire they are
// the grpc-status-details-bin trailer that every gRPC client library reads. Threads: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// ErrorInfo.domain of every error that we make.
inline constexpr char kErrorDomain[] = "sluice";

// Each returns `status` with the detail added; an OK status stays as it is.
absl::Status WithReason(absl::Status status, absl::string_view reason,
                        const std::map<std::string, std::string>& metadata = {});
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);
absl::Status WithQuotaFailure(absl::Status status, absl::string_view subject, absl::string_view description);
// InvalidArgument "field: description", with a BadRequest that names the field.
absl::Status BadField(absl::string_view field, absl::string_view description);
// Unimplemented "field: not served", with a BadRequest that names the field.
absl::Status FieldNotServed(absl::string_view field);

// ErrorInfo.reason, or empty.
std::string ReasonOf(const absl::Status& status);
// The field that BadField or FieldNotServed named, or empty.
std::string FieldOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

// The message is cut at 2 KiB: it travels in a header. A status of ours always has details on the wire; what
// gRPC itself reports, such as a connection that failed, has none.
grpc::Status ToGrpcStatus(const absl::Status& status);
inline bool MadeByPeer(const grpc::Status& status) { return !status.error_details().empty(); }
// Unknown details are kept as payloads.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice
