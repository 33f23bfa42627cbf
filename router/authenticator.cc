#include "router/authenticator.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr absl::string_view kScheme = "bearer ";

}  // namespace

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Open(std::string keys_file,
                                                                   const Clock* clock) {
  auto authenticator = std::unique_ptr<Authenticator>(new Authenticator(std::move(keys_file), clock));
  if (authenticator->keys_file_.empty()) return authenticator;
  authenticator->read_ = StampOf(authenticator->keys_file_);
  absl::StatusOr<std::vector<ApiKey>> keys = ReadApiKeys(authenticator->keys_file_);
  if (!keys.ok()) {
    return absl::Status(keys.status().code(), absl::StrCat("--api-keys ", keys.status().message(),
                                                           "; sluice keys create makes the file"));
  }
  authenticator->Take(*std::move(keys));
  return authenticator;
}

void Authenticator::Take(std::vector<ApiKey> keys) {
  MutexLock lock(&mu_);
  std::map<std::string, Known, std::less<>> known;
  for (ApiKey& key : keys) {
    auto before = keys_.find(key.id);
    auto use = before != keys_.end() ? before->second.use : std::make_shared<KeyUse>(key.id);
    std::string id = key.id;
    known.emplace(std::move(id), Known{std::move(key), std::move(use)});
  }
  keys_ = std::move(known);
}

void Authenticator::Reload() {
  if (keys_file_.empty()) return;
  const FileStamp now = StampOf(keys_file_);
  if (now == read_) return;
  read_ = now;
  absl::StatusOr<std::vector<ApiKey>> keys = ReadApiKeys(keys_file_);
  if (!keys.ok()) {
    spdlog::warn("api keys not reloaded, those of before hold error=\"{}\"",
                 std::string(keys.status().message()));
    return;
  }
  spdlog::info("api keys reloaded keys={}", keys->size());
  Take(*std::move(keys));
}

absl::StatusOr<Authenticator::Known> Authenticator::Find(absl::string_view authorization) const {
  if (authorization.empty()) {
    return WithReason(absl::UnauthenticatedError("no API key: send the header authorization: Bearer KEY"),
                      "NO_API_KEY");
  }
  const absl::Status unknown = WithReason(
      absl::UnauthenticatedError("the API key is not one of this server; it may have been revoked"),
      "UNKNOWN_API_KEY");
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return unknown;
  const absl::string_view secret = absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
  Known known;
  {
    MutexLock lock(&mu_);
    auto found = keys_.find(IdOfKey(secret));
    if (found == keys_.end()) return unknown;
    known = found->second;
  }
  if (!Opens(known.key, secret)) return unknown;
  return known;
}

absl::StatusOr<Caller> Authenticator::Admit(absl::string_view authorization) {
  if (keys_file_.empty()) return Caller();
  SLUICE_ASSIGN_OR_RETURN(Known known, Find(authorization));
  if (known.key.admin) {
    return WithReason(
        absl::PermissionDeniedError("the API key is an operator's: it opens the admin port, not this one"),
        "ADMIN_KEY");
  }
  SLUICE_RETURN_IF_ERROR(known.use->Begin(known.key.limits, clock_->Now()));
  return Caller(known.key.owner, std::move(known.use));
}

absl::Status Authenticator::CheckOperator(absl::string_view authorization) const {
  if (keys_file_.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(Known known, Find(authorization));
  if (known.key.admin) return absl::OkStatus();
  return WithReason(
      absl::PermissionDeniedError("the API key is not an operator's: sluice keys create --admin makes one"),
      "NOT_ADMIN");
}

absl::string_view AuthorizationOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  auto found = metadata.find("authorization");
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

}  // namespace sluice
