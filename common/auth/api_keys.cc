#include "common/auth/api_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_id.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kPrefix = "sk-sluice-";
constexpr size_t kIdDigits = 12, kSecretDigits = 64, kMaxOwner = 64;
constexpr size_t kKeyLength = kPrefix.size() + kIdDigits + 1 + kSecretDigits;
constexpr size_t kHashDigits = 2 * SHA256_DIGEST_LENGTH;
constexpr size_t kMaxFileBytes = 64 << 20;

std::string HashOf(absl::string_view salt, absl::string_view secret) {
  const std::string text = absl::StrCat(salt, secret);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

Json ToJson(const ApiKey& key) {
  Json out = {{"id", key.id}, {"owner", key.owner}, {"created", key.created}};
  if (key.admin) out["admin"] = true;
  if (key.limits.requests_per_minute > 0) out["requests_per_minute"] = key.limits.requests_per_minute;
  if (key.limits.tokens_per_minute > 0) out["tokens_per_minute"] = key.limits.tokens_per_minute;
  if (key.limits.in_flight > 0) out["in_flight"] = key.limits.in_flight;
  out["salt"] = key.salt;
  out["sha256"] = key.sha256;
  return out;
}

absl::StatusOr<ApiKey> FromJson(const Json& json) {
  ApiKey key;
  key.id = json.at("id").get<std::string>();
  key.owner = json.at("owner").get<std::string>();
  key.created = json.value("created", "");
  key.admin = json.value("admin", false);
  key.limits.requests_per_minute = json.value("requests_per_minute", int64_t{0});
  key.limits.tokens_per_minute = json.value("tokens_per_minute", int64_t{0});
  key.limits.in_flight = json.value("in_flight", int64_t{0});
  key.salt = json.at("salt").get<std::string>();
  key.sha256 = json.at("sha256").get<std::string>();
  if (!IsHex(key.id, kIdDigits)) return absl::InvalidArgumentError("id: want 12 hex digits");
  SLUICE_RETURN_IF_ERROR(CheckOwner(key.owner));
  if (!IsHex(key.sha256, kHashDigits)) return absl::InvalidArgumentError("sha256: want 64 hex digits");
  const KeyLimits& limits = key.limits;
  if (limits.requests_per_minute < 0 || limits.tokens_per_minute < 0 || limits.in_flight < 0) {
    return absl::InvalidArgumentError("a limit below 0; leave it out for none");
  }
  return key;
}

absl::Status Errno(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status CheckOwner(absl::string_view owner) {
  const bool good =
      !owner.empty() && owner.size() <= kMaxOwner && std::all_of(owner.begin(), owner.end(), [](char c) {
        return absl::ascii_isalnum(c) || absl::string_view("._@-").find(c) != absl::string_view::npos;
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError("owner: want 1 to 64 letters, digits or any of . _ @ -");
}

std::string IssueKey(absl::Time now, ApiKey* key) {
  key->id = RandomId128().substr(0, kIdDigits);
  key->created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone());
  key->salt = RandomId128();
  const std::string secret = absl::StrCat(kPrefix, key->id, "-", RandomId128(), RandomId128());
  key->sha256 = HashOf(key->salt, secret);
  return secret;
}

absl::string_view IdOfKey(absl::string_view secret) {
  if (secret.size() != kKeyLength || !absl::StartsWith(secret, kPrefix)) return "";
  return secret.substr(kPrefix.size(), kIdDigits);
}

bool Opens(const ApiKey& key, absl::string_view secret) {
  const std::string hash = HashOf(key.salt, secret);
  return key.sha256.size() == hash.size() && CRYPTO_memcmp(key.sha256.data(), hash.data(), hash.size()) == 0;
}

absl::StatusOr<std::vector<ApiKey>> ReadApiKeys(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::stringstream text;
  text << in.rdbuf();
  if (text.view().size() > kMaxFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, ": above 64 MiB"));
  std::vector<ApiKey> keys;
  std::set<std::string> ids;
  try {
    const Json file = Json::parse(text.str());
    for (const Json& entry : file.at("keys")) {
      absl::StatusOr<ApiKey> key = FromJson(entry);
      absl::Status status = key.status();
      if (status.ok() && !ids.insert(key->id).second) status = absl::InvalidArgumentError("id: there twice");
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": keys[", keys.size(), "]: ", status.message()));
      }
      keys.push_back(*std::move(key));
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a file of keys, sluice keys create writes one: ", error.what()));
  }
  return keys;
}

absl::Status WriteApiKeys(const std::string& path, const std::vector<ApiKey>& keys) {
  Json list = Json::array();
  for (const ApiKey& key : keys) list.push_back(ToJson(key));
  const std::string text = Json{{"keys", list}}.dump(2) + "\n";
  const std::string fresh = absl::StrCat(path, ".new-", RandomId128());
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Errno(path, "cannot write next to it");
  struct stat before {};
  // The router may run as another user: a file that is there keeps its owner's group and its mode.
  if (stat(path.c_str(), &before) == 0) {
    if (fchown(fd, before.st_uid, before.st_gid) == 0) fchmod(fd, before.st_mode & 0777);
  }
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || fsync(fd) != 0) {
    absl::Status status = Errno(path, "cannot write");
    close(fd);
    unlink(fresh.c_str());
    return status;
  }
  close(fd);
  if (std::rename(fresh.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = Errno(path, "cannot replace");
  unlink(fresh.c_str());
  return status;
}

}  // namespace sluice
