// Role: who asks: from the key of a call to its owner, within the key's limits. One for gRPC and HTTP.
// Without a file of keys everybody is the owner "", without limits. Each router counts on its own.
// Threads: any; one lock, and one a key. Reload reads a file: never on a gRPC thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/auth/api_keys.h"
#include "common/base/clock.h"
#include "common/base/file_stamp.h"
#include "common/base/mutex.h"
#include "router/key_use.h"

namespace sluice {

// Somebody whose request is under way: it counts as in flight until Leave, or while this lives.
class Caller {
 public:
  Caller() = default;  // of a server without keys
  Caller(std::string owner, std::shared_ptr<KeyUse> begun)
      : owner_(std::move(owner)), use_(std::move(begun)) {}
  Caller(Caller&&) = default;
  Caller& operator=(Caller&&) = delete;
  ~Caller() { Leave(); }

  const std::string& owner() const { return owner_; }  // of sessions and of cached KV
  void SpendTokens(int64_t tokens) const {
    if (use_ != nullptr) use_->SpendTokens(tokens);
  }
  // Before the answer goes out: who has it may ask again.
  void Leave() {
    if (use_ != nullptr && !std::exchange(left_, true)) use_->End();
  }

 private:
  std::string owner_;
  std::shared_ptr<KeyUse> use_;
  bool left_ = false;
};

class Authenticator {
 public:
  // keys_file: of `sluice keys`; empty: none is asked for.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Open(std::string keys_file, const Clock* clock);

  // authorization: the value of that header, "Bearer KEY", or empty.
  // A call of the public API. Unauthenticated: no key, or none that we know. PermissionDenied: an operator's.
  // ResourceExhausted / RATE_LIMIT with RetryInfo and QuotaFailure: over a limit of the key.
  absl::StatusOr<Caller> Admit(absl::string_view authorization);
  // A call of the admin API. PermissionDenied: a key without `admin`.
  absl::Status CheckOperator(absl::string_view authorization) const;

  // Takes over the file if it has changed; one that cannot be read changes nothing and is logged once.
  void Reload();

 private:
  struct Known {
    ApiKey key;
    std::shared_ptr<KeyUse> use;
  };
  Authenticator(std::string keys_file, const Clock* clock)
      : keys_file_(std::move(keys_file)), clock_(clock) {}
  void Take(std::vector<ApiKey> keys);
  // A copy: the file may change meanwhile.
  absl::StatusOr<Known> Find(absl::string_view authorization) const;

  const std::string keys_file_;
  const Clock* const clock_;
  FileStamp read_;  // Reload's; one at a time
  mutable Mutex mu_;
  std::map<std::string, Known, std::less<>> keys_ ABSL_GUARDED_BY(mu_);  // by id
};

// The value of the authorization header of a gRPC call.
absl::string_view AuthorizationOf(const grpc::CallbackServerContext& context);

}  // namespace sluice
