#include "router/http/json_object.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

// A document of the longest context as ids has some millions of values; deeper than a schema nothing nests.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{4} << 20;

// Before anything is built: a small text can ask for a large tree.
absl::Status CheckShape(absl::string_view text) {
  int depth = 0;
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == '[' || c == '{' || c == ',') ++values;
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat("the body is nested deeper than ", kMaxDepth));
    }
    if (values > kMaxValues) {
      return absl::InvalidArgumentError(absl::StrCat("the body has more than ", kMaxValues, " values"));
    }
  }
  return absl::OkStatus();
}

bool SaysNothing(const Json& value) { return value.is_null() || (value.is_structured() && value.empty()); }

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  SLUICE_RETURN_IF_ERROR(CheckShape(text));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the body is not JSON: ", error.what()));
  }
}

absl::StatusOr<std::string> TextOf(const std::string& name, const Json& value) {
  if (!value.is_string()) return BadField(name, absl::StrCat("a ", value.type_name(), "; send a string"));
  return value.get<std::string>();
}

absl::StatusOr<bool> BoolOf(const std::string& name, const Json& value) {
  if (!value.is_boolean())
    return BadField(name, absl::StrCat("a ", value.type_name(), "; send true or false"));
  return value.get<bool>();
}

absl::StatusOr<int64_t> WholeOf(const std::string& name, const Json& value, int64_t least, int64_t most) {
  const auto refused = [&](const auto& number) {
    return BadField(name, absl::StrCat(number, " is not a whole number in [", least, ", ", most, "]"));
  };
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (most < 0 || number > static_cast<uint64_t>(most) || static_cast<int64_t>(number) < least) {
      return refused(number);
    }
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) {
    const int64_t number = value.get<int64_t>();
    if (number < least || number > most) return refused(number);
    return number;
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // Beyond 2^53 not every whole number is one.
    if (number != std::floor(number) || std::abs(number) > 9007199254740992.0 ||
        number < static_cast<double>(least) || number > static_cast<double>(most)) {
      return refused(number);
    }
    return static_cast<int64_t>(number);
  }
  return BadField(name, absl::StrCat("a ", value.type_name(), "; send a number"));
}

absl::StatusOr<double> NumberOf(const std::string& name, const Json& value) {
  if (!value.is_number()) return BadField(name, absl::StrCat("a ", value.type_name(), "; send a number"));
  return value.get<double>();
}

absl::StatusOr<JsonObject> JsonObject::Of(const Json& value, const std::string& name, std::string prefix) {
  if (!value.is_object()) return BadField(name, absl::StrCat("a ", value.type_name(), "; send an object"));
  return JsonObject(&value, std::move(prefix));
}

const Json* JsonObject::Take(absl::string_view key) {
  taken_.emplace(key);
  const auto found = value_->find(std::string(key));
  return found == value_->end() || SaysNothing(*found) ? nullptr : &*found;
}

void JsonObject::TakeIf(absl::string_view key, const Json& harmless) {
  const auto found = value_->find(std::string(key));
  if (found != value_->end() && *found == harmless) taken_.emplace(key);
}

absl::Status JsonObject::CheckAllTaken() const {
  for (const auto& [key, value] : value_->items()) {
    if (taken_.count(key) == 0 && !SaysNothing(value)) return FieldNotServed(NameOf(key));
  }
  return absl::OkStatus();
}

}  // namespace sluice
