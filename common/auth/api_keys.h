// Role: the file of API keys: whose each key is, what it may do, and its hash. Why one hash round is enough:
// a key is 256 random bits of ours, never a password of somebody's, so there is nothing to guess that a slow
// hash would protect, and a slow one would let strangers burn our cores. Salted, so that equal keys in two
// files do not look equal. Threads: pure functions; files are read and written on the caller's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice {

// Of one key on one router; 0: no limit.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and replies
  int64_t in_flight = 0;
  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct ApiKey {
  std::string id;      // 12 hex digits, a part of the key that is no secret
  std::string owner;   // whose sessions it sees
  bool admin = false;  // opens the admin port, and nothing else
  KeyLimits limits;
  std::string created;  // RFC 3339
  std::string salt;     // 32 hex digits
  std::string sha256;   // of salt and key, hex
  friend bool operator==(const ApiKey&, const ApiKey&) = default;
};

// [A-Za-z0-9._@-], 1 to 64 of them; InvalidArgument says so.
absl::Status CheckOwner(absl::string_view owner);

// Fills in id, created, salt and sha256 of `key`; the key itself, which is nowhere else.
std::string IssueKey(absl::Time now, ApiKey* key);

// The id in a key, or empty when it cannot be one of ours.
absl::string_view IdOfKey(absl::string_view secret);
// In the same time whatever is wrong with `secret`.
bool Opens(const ApiKey& key, absl::string_view secret);

// NotFound: no such file. InvalidArgument names the file and what is wrong in it.
absl::StatusOr<std::vector<ApiKey>> ReadApiKeys(const std::string& path);
// Readable by the owner of the process only; a reader sees the old file or the new one.
absl::Status WriteApiKeys(const std::string& path, const std::vector<ApiKey>& keys);

}  // namespace sluice
