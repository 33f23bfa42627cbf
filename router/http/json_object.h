// Role: a JSON object from a client, read key by key with errors that name the key; what nobody has read is
// refused by name. Null, an empty list and an empty object say nothing. Threads: pure. The JSON outlives it.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

using Json = nlohmann::json;

// InvalidArgument: not JSON, not UTF-8, nested deeper or of more values than a request can mean.
absl::StatusOr<Json> ParseJson(absl::string_view text);

// Of JSON values, by name for errors. Whole numbers may be written as 10.0.
absl::StatusOr<std::string> TextOf(const std::string& name, const Json& value);
absl::StatusOr<bool> BoolOf(const std::string& name, const Json& value);
absl::StatusOr<int64_t> WholeOf(const std::string& name, const Json& value, int64_t least, int64_t most);
absl::StatusOr<double> NumberOf(const std::string& name, const Json& value);

class JsonObject {
 public:
  // prefix: of its keys' names in errors ("sluice."). InvalidArgument: no object.
  static absl::StatusOr<JsonObject> Of(const Json& value, const std::string& name, std::string prefix);

  std::string NameOf(absl::string_view key) const { return prefix_ + std::string(key); }
  // Null: absent, or says nothing.
  const Json* Take(absl::string_view key);
  // Takes `key` if its value is one of those that ask for nothing; the others stay to be refused.
  void TakeIf(absl::string_view key, const Json& harmless);
  // Unimplemented names a key that nobody has taken.
  absl::Status CheckAllTaken() const;

 private:
  JsonObject(const Json* value, std::string prefix) : value_(value), prefix_(std::move(prefix)) {}
  const Json* value_;
  std::string prefix_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace sluice
