// The typed getters of GgufFile.
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/weights/gguf.h"

namespace sluice {
namespace {

// Elements of a checked array of fixed-size numbers.
template <class Stored, class Out>
std::vector<Out> Convert(const GgufArray& array) {
  std::vector<Out> out(array.count);
  for (uint64_t i = 0; i < array.count; ++i) {
    Stored value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<Out>(value);
  }
  return out;
}

}  // namespace

absl::StatusOr<const GgufValue*> GgufFile::FindValue(absl::string_view key) const {
  auto it = metadata_.find(key);
  if (it == metadata_.end()) return absl::NotFoundError(absl::StrCat(path_, ": no metadata key ", key));
  return &it->second;
}

template <class T>
absl::StatusOr<T> GgufFile::Get(absl::string_view key, const char* kind) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, FindValue(key));
  if (const T* held = std::get_if<T>(value)) return *held;
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not ", kind));
}

absl::StatusOr<int64_t> GgufFile::GetInt(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, FindValue(key));
  if (const auto* held = std::get_if<int64_t>(value)) return *held;
  if (const auto* held = std::get_if<uint64_t>(value); held != nullptr && *held <= INT64_MAX)
    return static_cast<int64_t>(*held);
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not a 64-bit integer"));
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  return Get<double>(key, "a floating-point number");
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const { return Get<bool>(key, "a boolean"); }

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  return Get<absl::string_view>(key, "a string");
}

absl::StatusOr<GgufArray> GgufFile::GetArray(absl::string_view key, const char* kind) const {
  return Get<GgufArray>(key, kind);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(GgufArray array, GetArray(key, "an array of integers"));
  switch (array.element) {
    case GgufType::kUint8:
      return Convert<uint8_t, int64_t>(array);
    case GgufType::kInt8:
      return Convert<int8_t, int64_t>(array);
    case GgufType::kUint16:
      return Convert<uint16_t, int64_t>(array);
    case GgufType::kInt16:
      return Convert<int16_t, int64_t>(array);
    case GgufType::kUint32:
      return Convert<uint32_t, int64_t>(array);
    case GgufType::kInt32:
      return Convert<int32_t, int64_t>(array);
    case GgufType::kInt64:
      return Convert<int64_t, int64_t>(array);
    default:
      return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not an array of integers"));
  }
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(GgufArray array, GetArray(key, "an array of floats"));
  if (array.element == GgufType::kFloat32) return Convert<float, float>(array);
  if (array.element == GgufType::kFloat64) return Convert<double, float>(array);
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not an array of floats"));
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStrings(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(GgufArray array, GetArray(key, "an array of strings"));
  if (array.element != GgufType::kString)
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not an array of strings"));
  std::vector<absl::string_view> out;
  out.reserve(array.count);
  for (size_t at = 0; at < array.bytes.size();) {  // lengths were checked when the file was opened
    uint64_t size;
    std::memcpy(&size, array.bytes.data() + at, sizeof(size));
    out.push_back(array.bytes.substr(at + sizeof(size), size));
    at += sizeof(size) + size;
  }
  return out;
}

}  // namespace sluice
