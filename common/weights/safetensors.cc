#include "common/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100 << 20;  // the format's own limit

absl::Status Invalid(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

constexpr int kMaxDepth = 3;  // {tensor: {shape: []}}

// JSON keeps the last of two equal keys; a file that names a tensor twice is refused instead. What is nested
// deeper than the format nests is skipped while parsing and then refused.
absl::StatusOr<Json> ParseObject(absl::string_view where, absl::string_view text) {
  std::set<std::string> keys;
  std::string repeated;
  bool too_deep = false;
  auto on_event = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) {
      too_deep = true;
      return false;
    }
    if (event == Json::parse_event_t::key && depth == 1 &&
        !keys.insert(value.get_ref<const std::string&>()).second)
      repeated = value.get_ref<const std::string&>();
    return true;
  };
  Json out = Json::parse(text.begin(), text.end(), on_event, /*allow_exceptions=*/false);
  if (too_deep) return Invalid(where, absl::StrCat("is nested deeper than ", kMaxDepth));
  if (out.is_discarded()) return Invalid(where, "is not valid JSON");
  if (!out.is_object()) return Invalid(where, "is not a JSON object");
  if (!repeated.empty()) return Invalid(where, absl::StrCat("names ", repeated, " twice"));
  return out;
}

std::optional<TensorType> TypeOf(absl::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  if (dtype == "BF16") return TensorType::kBF16;
  return std::nullopt;
}

// A JSON array of non-negative integers that fit int64.
std::optional<std::vector<int64_t>> Integers(const Json& object, const char* key) {
  auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return std::nullopt;
  std::vector<int64_t> out;
  for (const Json& item : *it) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) return std::nullopt;
    out.push_back(item.get<int64_t>());
  }
  return out;
}

absl::StatusOr<TensorInfo> ParseTensor(absl::string_view where, const std::string& name, const Json& entry,
                                       absl::string_view data) {
  if (!entry.is_object()) return Invalid(where, "is not a JSON object");
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Invalid(where, "dtype is missing or no string");
  const auto& dtype_name = dtype->get_ref<const std::string&>();
  std::optional<TensorType> type = TypeOf(dtype_name);
  if (!type)
    return Invalid(where, absl::StrCat("dtype ", dtype_name, " is not supported (F32, F16, BF16 are)"));
  std::optional<std::vector<int64_t>> shape = Integers(entry, "shape");
  if (!shape) return Invalid(where, "shape is missing or no list of sizes");
  std::optional<std::vector<int64_t>> offsets = Integers(entry, "data_offsets");
  if (!offsets || offsets->size() != 2)
    return Invalid(where, "data_offsets is missing or no pair of offsets");
  int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end || static_cast<uint64_t>(end) > data.size())
    return Invalid(where, absl::StrCat("data_offsets [", begin, ", ", end, "] leave the ", data.size(),
                                       " bytes of tensor data; the file may be cut short"));
  SLUICE_ASSIGN_OR_RETURN(size_t bytes, TensorBytes(where, *type, *shape));
  if (bytes != static_cast<uint64_t>(end - begin))
    return Invalid(where, absl::StrCat("data_offsets hold ", end - begin, " bytes, the shape needs ", bytes));
  return TensorInfo{name, *std::move(shape), *type, data.substr(begin, bytes)};
}

// The format forbids gaps and overlaps: either means that offsets were damaged.
absl::Status CheckCoverage(absl::string_view path, const std::vector<TensorInfo>& tensors,
                           absl::string_view data) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->bytes.data() < b->bytes.data(); });
  const char* at = data.data();
  for (const TensorInfo* t : order) {
    if (t->bytes.data() != at)
      return Invalid(path,
                     absl::StrCat("tensor ", t->name, ": data_offsets ",
                                  t->bytes.data() < at ? "overlap the tensor before" : "leave a gap before"));
    at = t->bytes.data() + t->bytes.size();
  }
  if (at != data.data() + data.size())
    return Invalid(path, absl::StrCat(data.data() + data.size() - at, " bytes after the last tensor"));
  return absl::OkStatus();
}

}  // namespace

absl::Status SafetensorsFile::AddFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(FileMap file, FileMap::Open(path));
  uint64_t header_size;
  if (file.size() < sizeof(header_size)) return Invalid(path, "too short for a safetensors header");
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  if (header_size > kMaxHeader || header_size > file.size() - sizeof(header_size))
    return Invalid(path, absl::StrCat("header size ", header_size, " does not fit a file of ", file.size(),
                                      " bytes; not safetensors, or cut short"));
  absl::string_view text = file.bytes().substr(sizeof(header_size), header_size);
  absl::string_view data = file.bytes().substr(sizeof(header_size) + header_size);

  SLUICE_ASSIGN_OR_RETURN(Json header, ParseObject(absl::StrCat(path, ": header"), text));
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    std::string where = absl::StrCat(path, ": tensor ", name);
    SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, ParseTensor(where, name, entry, data));
    tensors.push_back(std::move(tensor));
  }
  SLUICE_RETURN_IF_ERROR(CheckCoverage(path, tensors, data));
  for (TensorInfo& tensor : tensors) {
    std::string name = tensor.name;
    if (!tensors_.emplace(name, std::move(tensor)).second)
      return Invalid(path, absl::StrCat("tensor ", name, " is already in another shard"));
  }
  headers_.push_back(text);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile(path));
  SLUICE_RETURN_IF_ERROR(out->AddFile(path));
  return out;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::OpenSharded(const std::string& index_path) {
  SLUICE_ASSIGN_OR_RETURN(FileMap index_file, FileMap::Open(index_path));
  SLUICE_ASSIGN_OR_RETURN(Json index, ParseObject(index_path, index_file.bytes()));
  auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    return Invalid(index_path, "weight_map is missing or no JSON object");

  std::map<std::string, std::set<std::string>> tensors_of;  // shard file -> tensor names
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string())
      return Invalid(index_path, absl::StrCat("weight_map: ", tensor, ": file is no string"));
    const auto& file = shard.get_ref<const std::string&>();
    if (file.empty() || absl::StrContains(file, '/') || absl::StrContains(file, '\0'))
      return Invalid(index_path, absl::StrCat("weight_map: ", tensor, ": '", file, "' is no file name"));
    tensors_of[file].insert(tensor);
  }

  std::string directory = index_path.substr(0, index_path.find_last_of('/') + 1);
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile(index_path));
  for (const auto& [file, listed] : tensors_of) {
    std::set<std::string> before;
    for (const auto& [name, tensor] : out->tensors_) before.insert(name);
    SLUICE_RETURN_IF_ERROR(out->AddFile(directory + file));
    for (const std::string& name : listed)
      if (before.contains(name) || out->tensors_.find(name) == out->tensors_.end())
        return Invalid(index_path, absl::StrCat("weight_map: tensor ", name, " is not in ", file));
    if (out->tensors_.size() - before.size() != listed.size())
      for (const auto& [name, tensor] : out->tensors_)
        if (!before.contains(name) && !listed.contains(name))
          return Invalid(index_path,
                         absl::StrCat("weight_map: tensor ", name, " of ", file, " is not listed"));
  }
  return out;
}

}  // namespace sluice
