#include "common/text/json_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

absl::Status Wrong(absl::string_view where, const char* key, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(where, ".", key, ": expected ", wanted));
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view where) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(where, ": not valid JSON"));
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object"));
  return json;
}

const Json& FieldOrNull(const Json& object, const char* key) {
  static const Json* const null = new Json();
  auto it = object.find(key);
  return it == object.end() ? *null : *it;
}

absl::StatusOr<std::string> StringField(const Json& object, const char* key, absl::string_view where) {
  const Json& field = FieldOrNull(object, key);
  if (!field.is_string()) return Wrong(where, key, "a string");
  return field.get<std::string>();
}

absl::StatusOr<bool> BoolField(const Json& object, const char* key, bool otherwise, absl::string_view where) {
  const Json& field = FieldOrNull(object, key);
  if (field.is_null()) return otherwise;
  if (!field.is_boolean()) return Wrong(where, key, "true or false");
  return field.get<bool>();
}

absl::StatusOr<int64_t> IntField(const Json& object, const char* key, absl::string_view where) {
  const Json& field = FieldOrNull(object, key);
  if (!field.is_number_integer() || (field.is_number_unsigned() && field.get<uint64_t>() > INT64_MAX))
    return Wrong(where, key, "a whole number");
  return field.get<int64_t>();
}

absl::Status CheckKeys(const Json& object, std::initializer_list<absl::string_view> known,
                       absl::string_view where) {
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object"));
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), absl::string_view(key)) == known.end())
      return absl::UnimplementedError(absl::StrCat(where, ": unknown key \"", key, "\""));
  return absl::OkStatus();
}

}  // namespace sluice
