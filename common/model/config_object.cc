#include "common/model/config_object.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

using Json = nlohmann::json;

namespace {

constexpr int kMaxDepth = 16;

}  // namespace

absl::StatusOr<ConfigObject> ConfigObject::Parse(absl::string_view where, absl::string_view text) {
  bool too_deep = false;
  auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  Json parsed = Json::parse(text.begin(), text.end(), limit_depth, /*allow_exceptions=*/false);
  if (too_deep || parsed.is_discarded() || !parsed.is_object())
    return absl::InvalidArgumentError(absl::StrCat(where, ": is not a JSON object"));
  return ConfigObject(std::string(where), std::move(parsed));
}

absl::Status ConfigObject::Invalid(absl::string_view field, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(where_, ": ", field, ": ", what));
}

const Json* ConfigObject::Peek(const char* field) const {
  auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* ConfigObject::Take(const char* field) {
  read_.insert(field);
  return Peek(field);
}

absl::StatusOr<int> ConfigObject::ToInt(const char* field, const Json& value, int min, int max) const {
  if (!value.is_number_integer()) return Invalid(field, "is not an integer");
  bool fits = value.is_number_unsigned()
                  ? value.get<uint64_t>() <= INT32_MAX
                  : value.get<int64_t>() >= INT32_MIN && value.get<int64_t>() <= INT32_MAX;
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max)
    return Invalid(field, absl::StrCat(value.dump(), " is outside ", min, " to ", max));
  return value.get<int>();
}

absl::StatusOr<int> ConfigObject::Int(const char* field, int min, int max) {
  const Json* value = Take(field);
  if (value == nullptr) return Invalid(field, "is missing");
  return ToInt(field, *value, min, max);
}

absl::StatusOr<int> ConfigObject::IntOr(const char* field, int fallback, int min, int max) {
  const Json* value = Take(field);
  if (value == nullptr) return fallback;
  return ToInt(field, *value, min, max);
}

absl::StatusOr<std::optional<double>> ConfigObject::OptionalNumber(const char* field) {
  const Json* value = Take(field);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    return Invalid(field, "is not a finite number");
  return std::optional<double>(value->get<double>());
}

absl::StatusOr<double> ConfigObject::Positive(const char* field) {
  if (!Has(field)) return Invalid(field, "is missing");
  return PositiveOr(field, 0);
}

absl::StatusOr<double> ConfigObject::PositiveOr(const char* field, double fallback) {
  SLUICE_ASSIGN_OR_RETURN(std::optional<double> value, OptionalNumber(field));
  if (!value) return fallback;
  if (*value <= 0) return Invalid(field, absl::StrCat(*value, " is not above 0"));
  return *value;
}

absl::StatusOr<bool> ConfigObject::BoolOr(const char* field, bool fallback) {
  const Json* value = Take(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Invalid(field, "is not a boolean");
  return value->get<bool>();
}

absl::StatusOr<std::string> ConfigObject::StringOr(const char* field, absl::string_view fallback) {
  const Json* value = Take(field);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return Invalid(field, "is not a string");
  return value->get<std::string>();
}

absl::StatusOr<std::vector<std::string>> ConfigObject::Strings(const char* field) {
  std::vector<std::string> out;
  const Json* value = Take(field);
  if (value == nullptr) return out;
  if (!value->is_array()) return Invalid(field, "is not a list of strings");
  for (const Json& item : *value) {
    if (!item.is_string()) return Invalid(field, "is not a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

absl::StatusOr<std::vector<int>> ConfigObject::IntOrList(const char* field, int min, int max) {
  std::vector<int> out;
  const Json* value = Take(field);
  if (value == nullptr) return out;
  Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    SLUICE_ASSIGN_OR_RETURN(int number, ToInt(field, item, min, max));
    out.push_back(number);
  }
  return out;
}

absl::StatusOr<std::optional<ConfigObject>> ConfigObject::Object(const char* field) {
  const Json* value = Take(field);
  if (value == nullptr) return std::optional<ConfigObject>();
  if (!value->is_object()) return Invalid(field, "is not a JSON object");
  return std::optional<ConfigObject>(ConfigObject(absl::StrCat(where_, ": ", field), *value));
}

absl::Status ConfigObject::MustBe(const char* field, bool value) {
  SLUICE_ASSIGN_OR_RETURN(bool found, BoolOr(field, value));
  if (found != value) return Invalid(field, absl::StrCat(found ? "true" : "false", " is not supported"));
  return absl::OkStatus();
}

absl::Status ConfigObject::MustBe(const char* field, int value) {
  SLUICE_ASSIGN_OR_RETURN(std::optional<double> found, OptionalNumber(field));
  if (found && *found != value)
    return Invalid(field, absl::StrCat(*found, " is not supported, only ", value));
  return absl::OkStatus();
}

absl::Status ConfigObject::Finish(absl::Span<const absl::string_view> harmless) const {
  for (const auto& [field, value] : object_.items()) {
    if (read_.contains(field) || std::find(harmless.begin(), harmless.end(), field) != harmless.end())
      continue;
    return Invalid(field, "unknown field; it may change the model's results, so it is not ignored");
  }
  return absl::OkStatus();
}

}  // namespace sluice
