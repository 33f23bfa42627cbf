#include "common/weights/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place as little-endian");

constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr size_t kMaxNameBytes = 64 << 10;

// Reads forward through the header; every read is checked against what is left.
class Cursor {
 public:
  Cursor(absl::string_view file_path, absl::string_view bytes) : path_(file_path), bytes_(bytes) {}

  template <class T>
  absl::StatusOr<T> Number(absl::string_view field) {
    if (left() < sizeof(T)) return CutShort(field);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  absl::StatusOr<absl::string_view> String(absl::string_view field) {
    SLUICE_ASSIGN_OR_RETURN(uint64_t size, Number<uint64_t>(field));
    return Bytes(size, field);
  }

  absl::StatusOr<absl::string_view> Bytes(uint64_t size, absl::string_view field) {
    if (size > left()) return CutShort(field);
    absl::string_view out = bytes_.substr(at_, size);
    at_ += size;
    return out;
  }

  absl::Status Invalid(absl::string_view field, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", field, ": ", what));
  }

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

 private:
  absl::Status CutShort(absl::string_view field) const {
    return Invalid(field, absl::StrCat("runs past the end of the file (", bytes_.size(), " bytes)"));
  }

  absl::string_view path_;
  absl::string_view bytes_;
  size_t at_ = 0;
};

// Bytes of a fixed-size value, 0 for strings and arrays, nothing for unknown types.
std::optional<size_t> FixedSize(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return std::nullopt;
}

absl::StatusOr<GgufArray> ReadArray(Cursor& in, absl::string_view field, int depth) {
  if (depth > kMaxArrayDepth)
    return in.Invalid(field, absl::StrCat("arrays nested deeper than ", kMaxArrayDepth));
  SLUICE_ASSIGN_OR_RETURN(uint32_t raw_type, in.Number<uint32_t>(field));
  SLUICE_ASSIGN_OR_RETURN(uint64_t count, in.Number<uint64_t>(field));
  auto type = static_cast<GgufType>(raw_type);
  std::optional<size_t> fixed = FixedSize(type);
  if (!fixed) return in.Invalid(field, absl::StrCat("unknown element type ", raw_type));
  GgufArray out{type, count, {}};
  if (*fixed != 0) {
    if (count > in.left() / *fixed)
      return in.Invalid(field, absl::StrCat(count, " elements run past the end of the file"));
    SLUICE_ASSIGN_OR_RETURN(out.bytes, in.Bytes(count * *fixed, field));
    return out;
  }
  Cursor start = in;
  size_t begin = in.at();
  for (uint64_t i = 0; i < count; ++i) {  // each element takes bytes, so a false count ends at the file's end
    if (type == GgufType::kString) {
      SLUICE_RETURN_IF_ERROR(in.String(field).status());
    } else {
      SLUICE_RETURN_IF_ERROR(ReadArray(in, field, depth + 1).status());
    }
  }
  SLUICE_ASSIGN_OR_RETURN(out.bytes, start.Bytes(in.at() - begin, field));
  return out;
}

template <class T>
absl::StatusOr<GgufValue> ReadNumber(Cursor& in, absl::string_view field) {
  SLUICE_ASSIGN_OR_RETURN(T value, in.Number<T>(field));
  if constexpr (std::is_floating_point_v<T>) return GgufValue(static_cast<double>(value));
  if constexpr (std::is_unsigned_v<T>) return GgufValue(static_cast<uint64_t>(value));
  return GgufValue(static_cast<int64_t>(value));
}

absl::StatusOr<GgufValue> ReadValue(Cursor& in, absl::string_view field) {
  SLUICE_ASSIGN_OR_RETURN(uint32_t raw_type, in.Number<uint32_t>(field));
  switch (static_cast<GgufType>(raw_type)) {
    case GgufType::kUint8:
      return ReadNumber<uint8_t>(in, field);
    case GgufType::kInt8:
      return ReadNumber<int8_t>(in, field);
    case GgufType::kUint16:
      return ReadNumber<uint16_t>(in, field);
    case GgufType::kInt16:
      return ReadNumber<int16_t>(in, field);
    case GgufType::kUint32:
      return ReadNumber<uint32_t>(in, field);
    case GgufType::kInt32:
      return ReadNumber<int32_t>(in, field);
    case GgufType::kUint64:
      return ReadNumber<uint64_t>(in, field);
    case GgufType::kInt64:
      return ReadNumber<int64_t>(in, field);
    case GgufType::kFloat32:
      return ReadNumber<float>(in, field);
    case GgufType::kFloat64:
      return ReadNumber<double>(in, field);
    case GgufType::kBool: {
      SLUICE_ASSIGN_OR_RETURN(uint8_t value, in.Number<uint8_t>(field));
      if (value > 1) return in.Invalid(field, absl::StrCat("is ", value, ", not a boolean"));
      return GgufValue(value == 1);
    }
    case GgufType::kString: {
      SLUICE_ASSIGN_OR_RETURN(absl::string_view value, in.String(field));
      return GgufValue(value);
    }
    case GgufType::kArray: {
      SLUICE_ASSIGN_OR_RETURN(GgufArray value, ReadArray(in, field, 1));
      return GgufValue(value);
    }
  }
  return in.Invalid(field, absl::StrCat("unknown value type ", raw_type));
}

// The numbers are ggml's type ids.
std::optional<TensorType> TensorTypeOf(uint32_t id) {
  switch (id) {
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 6:
      return TensorType::kQ5_0;
    case 7:
      return TensorType::kQ5_1;
    case 8:
      return TensorType::kQ8_0;
    case 12:
      return TensorType::kQ4_K;
    case 13:
      return TensorType::kQ5_K;
    case 14:
      return TensorType::kQ6_K;
    case 30:
      return TensorType::kBF16;
  }
  return std::nullopt;
}

struct PlacedTensor {
  TensorInfo info;
  uint64_t offset;  // from the start of the tensor data
  size_t bytes;
};

absl::StatusOr<PlacedTensor> ReadTensorInfo(Cursor& in, absl::string_view field) {
  SLUICE_ASSIGN_OR_RETURN(absl::string_view name, in.String(absl::StrCat(field, " name")));
  if (name.size() > kMaxNameBytes) return in.Invalid(field, absl::StrCat("name of ", name.size(), " bytes"));
  std::string where = absl::StrCat("tensor ", name);
  SLUICE_ASSIGN_OR_RETURN(uint32_t n_dims, in.Number<uint32_t>(where));
  if (n_dims > kMaxDimensions)
    return in.Invalid(where, absl::StrCat(n_dims, " dimensions, at most ", kMaxDimensions, " are allowed"));
  std::vector<int64_t> shape(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    SLUICE_ASSIGN_OR_RETURN(uint64_t n, in.Number<uint64_t>(where));
    if (n > INT64_MAX) return in.Invalid(where, absl::StrCat("dimension ", i, " is ", n));
    shape[n_dims - 1 - i] = static_cast<int64_t>(n);  // GGUF lists the fastest first
  }
  SLUICE_ASSIGN_OR_RETURN(uint32_t type_id, in.Number<uint32_t>(where));
  std::optional<TensorType> type = TensorTypeOf(type_id);
  if (!type)
    return in.Invalid(where,
                      absl::StrCat("type ", type_id,
                                   " is not supported (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, "
                                   "Q5_K and Q6_K are)"));
  SLUICE_ASSIGN_OR_RETURN(uint64_t offset, in.Number<uint64_t>(where));
  auto bytes = TensorBytes(where, *type, shape);
  if (!bytes.ok()) return in.Invalid("tensor data", bytes.status().message());
  return PlacedTensor{TensorInfo{std::string(name), std::move(shape), *type, {}}, offset, *bytes};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(FileMap file, FileMap::Open(path));
  std::unique_ptr<GgufFile> out(new GgufFile(path, std::move(file)));
  SLUICE_RETURN_IF_ERROR(out->Parse());
  return out;
}

absl::Status GgufFile::Parse() {
  Cursor in(path_, file_.bytes());
  SLUICE_ASSIGN_OR_RETURN(absl::string_view magic, in.Bytes(4, "magic"));
  if (magic != "GGUF") return in.Invalid("magic", "not a GGUF file");
  SLUICE_ASSIGN_OR_RETURN(uint32_t version, in.Number<uint32_t>("version"));
  if (version == 0x02000000 || version == 0x03000000)
    return in.Invalid("version", "big-endian files are not supported; convert it to little-endian");
  if (version != 2 && version != 3)
    return in.Invalid("version", absl::StrCat(version, " is not supported (2 and 3 are)"));
  SLUICE_ASSIGN_OR_RETURN(uint64_t n_tensors, in.Number<uint64_t>("tensor count"));
  SLUICE_ASSIGN_OR_RETURN(uint64_t n_metadata, in.Number<uint64_t>("metadata count"));

  for (uint64_t i = 0; i < n_metadata; ++i) {
    std::string field = absl::StrCat("metadata entry ", i);
    SLUICE_ASSIGN_OR_RETURN(absl::string_view key, in.String(field));
    if (key.size() > kMaxNameBytes) return in.Invalid(field, absl::StrCat("key of ", key.size(), " bytes"));
    SLUICE_ASSIGN_OR_RETURN(GgufValue value, ReadValue(in, key));
    if (!metadata_.emplace(std::string(key), value).second) return in.Invalid(key, "appears twice");
  }

  std::vector<PlacedTensor> placed;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    SLUICE_ASSIGN_OR_RETURN(PlacedTensor tensor, ReadTensorInfo(in, absl::StrCat("tensor ", i)));
    placed.push_back(std::move(tensor));
  }
  header_ = file_.bytes().substr(0, in.at());

  uint64_t alignment = 32;
  if (Has("general.alignment")) {
    SLUICE_ASSIGN_OR_RETURN(int64_t value, GetInt("general.alignment"));
    alignment = static_cast<uint64_t>(value);
    if (value <= 0 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
      return in.Invalid("general.alignment",
                        absl::StrCat(value, " is no power of two up to ", kMaxAlignment));
  }
  uint64_t data_begin = (in.at() + alignment - 1) / alignment * alignment;
  absl::string_view data = data_begin < file_.size() ? file_.bytes().substr(data_begin) : absl::string_view();

  std::sort(placed.begin(), placed.end(),
            [](const PlacedTensor& a, const PlacedTensor& b) { return a.offset < b.offset; });
  uint64_t free_from = 0;
  for (PlacedTensor& t : placed) {
    std::string where = absl::StrCat("tensor ", t.info.name);
    if (t.offset % alignment != 0)
      return in.Invalid(where, absl::StrCat("offset ", t.offset, " is no multiple of ", alignment));
    if (t.offset > data.size() || t.bytes > data.size() - t.offset)
      return in.Invalid(where, absl::StrCat(t.bytes, " bytes at offset ", t.offset, " leave the ",
                                            data.size(), " bytes of tensor data; the file may be cut short"));
    if (t.offset < free_from) return in.Invalid(where, "overlaps the tensor before it");
    free_from = t.offset + t.bytes;
    t.info.bytes = data.substr(t.offset, t.bytes);
    std::string name = t.info.name;
    if (!tensors_.emplace(name, std::move(t.info)).second) return in.Invalid(where, "appears twice");
  }
  return absl::OkStatus();
}

}  // namespace sluice
