// Role: one JSON object of a configuration, read field by field; whatever nobody read and nobody listed as
// harmless is an error.
// Why: a field that is ignored by accident changes the model's answers without a trace.
// Threads: one reader at a time.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace sluice {

// Every error is InvalidArgument "where: field: what". A null value counts as absent.
class ConfigObject {
 public:
  static absl::StatusOr<ConfigObject> Parse(absl::string_view where, absl::string_view text);

  bool Has(const char* field) const { return Peek(field) != nullptr; }
  // True for null as well.
  bool Mentions(const char* field) const { return object_.contains(field); }

  absl::StatusOr<int> Int(const char* field, int min, int max);
  absl::StatusOr<int> IntOr(const char* field, int fallback, int min, int max);
  // Finite and > 0.
  absl::StatusOr<double> Positive(const char* field);
  absl::StatusOr<double> PositiveOr(const char* field, double fallback);
  absl::StatusOr<std::optional<double>> OptionalNumber(const char* field);
  absl::StatusOr<bool> BoolOr(const char* field, bool fallback);
  absl::StatusOr<std::string> StringOr(const char* field, absl::string_view fallback);
  absl::StatusOr<std::vector<std::string>> Strings(const char* field);
  // One integer or a list of them; empty when absent.
  absl::StatusOr<std::vector<int>> IntOrList(const char* field, int min, int max);
  // The nested object, read in the same way; absent: nullopt.
  absl::StatusOr<std::optional<ConfigObject>> Object(const char* field);

  // Refuses a field that is present with another value.
  absl::Status MustBe(const char* field, bool value);
  absl::Status MustBe(const char* field, int value);

  // Refuses every field that was neither read nor is in `harmless`.
  absl::Status Finish(absl::Span<const absl::string_view> harmless) const;

  absl::Status Invalid(absl::string_view field, absl::string_view what) const;

 private:
  ConfigObject(std::string where, nlohmann::json object)
      : where_(std::move(where)), object_(std::move(object)) {}
  const nlohmann::json* Peek(const char* field) const;
  const nlohmann::json* Take(const char* field);
  absl::StatusOr<int> ToInt(const char* field, const nlohmann::json& value, int min, int max) const;

  std::string where_;
  nlohmann::json object_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace sluice
