// Role: reads a GGUF file, version 2 or 3: tensors and metadata.
// Why: one file holds weights, configuration and tokenizer; nothing in it is trusted. Arrays stay in the
// mapping and are decoded when asked for, so a file can never make the reader allocate more than it holds.
// Threads: as WeightFile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_map.h"
#include "common/weights/weight_file.h"

namespace sluice {

// The numbers are the format's own.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// An array checked to lie inside the file. Arrays of arrays are checked too but have no decoder: no language
// model uses them.
struct GgufArray {
  GgufType element;
  uint64_t count;
  absl::string_view bytes;  // the encoded elements
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, absl::string_view, GgufArray>;

class GgufFile final : public WeightFile {
 public:
  // InvalidArgument names the file, the key or tensor, and what is wrong.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& path() const override { return path_; }
  const TensorMap& tensors() const override { return tensors_; }
  std::vector<absl::string_view> headers() const override { return {header_}; }

  using Metadata = std::map<std::string, GgufValue, std::less<>>;
  const Metadata& metadata() const { return metadata_; }
  bool Has(absl::string_view key) const { return metadata_.find(key) != metadata_.end(); }

  // NotFound when the key is absent, InvalidArgument when it is of another kind or does not fit. Strings
  // borrow from the file.
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(absl::string_view key) const;

 private:
  GgufFile(std::string path, FileMap file) : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Parse();
  template <class T>
  absl::StatusOr<T> Get(absl::string_view key, const char* kind) const;
  absl::StatusOr<const GgufValue*> FindValue(absl::string_view key) const;
  absl::StatusOr<GgufArray> GetArray(absl::string_view key, const char* kind) const;

  std::string path_;
  FileMap file_;
  absl::string_view header_;
  Metadata metadata_;
  TensorMap tensors_;
};

}  // namespace sluice
