// Role: JSON as template values, in the tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/text/jinja/value.h"

namespace sluice {

inline jinja::Value ValueFromJson(const nlohmann::ordered_json& json, bool marked = false) {
  using jinja::Value;
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(MarkedText(json.get<std::string>(), marked));
  if (json.is_array()) {
    jinja::List list;
    for (const auto& item : json) list.items.push_back(ValueFromJson(item, marked));
    return Value(std::move(list));
  }
  if (json.is_object()) {
    jinja::Dict dict;
    for (const auto& [key, item] : json.items())
      dict.entries.emplace_back(Value(absl::string_view(key)), ValueFromJson(item, marked));
    return Value(std::move(dict));
  }
  return Value();
}

}  // namespace sluice
