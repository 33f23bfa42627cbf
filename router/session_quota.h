// Role: an owner's quota, as clients read it. Threads: pure function.
#pragma once

#include "absl/status/status.h"
#include "common/rpc/status_codec.h"
#include "common/session/session_rules.h"

namespace sluice {

// A quota that a store names becomes a QuotaFailure; any other status stays as it is.
inline absl::Status NameQuota(const absl::Status& status) {
  const std::string subject = QuotaSubjectOf(status);
  if (subject.empty()) return status;
  return WithReason(
      WithQuotaFailure(absl::Status(status.code(), status.message()), subject, status.message()),
      "SESSION_QUOTA");
}

}  // namespace sluice
