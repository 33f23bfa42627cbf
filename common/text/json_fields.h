// Role: typed access to parsed JSON: a wrong type or an unknown key is a Status that names the place, never
// an exception. Pure functions.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

using Json = nlohmann::json;

// An object, or InvalidArgument.
absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view where);

// The value of `key`, or null if absent. `object` is an object.
const Json& FieldOrNull(const Json& object, const char* key);

absl::StatusOr<std::string> StringField(const Json& object, const char* key, absl::string_view where);
// Absent or null gives `otherwise`.
absl::StatusOr<bool> BoolField(const Json& object, const char* key, bool otherwise, absl::string_view where);
absl::StatusOr<int64_t> IntField(const Json& object, const char* key, absl::string_view where);

// Unimplemented names the first key outside `known`. InvalidArgument if it is no object.
absl::Status CheckKeys(const Json& object, std::initializer_list<absl::string_view> known,
                       absl::string_view where);

}  // namespace sluice
