// Role: the named tensors of one model, mapped from disk.
// Why: a model loads the same way from safetensors and from GGUF; only the two readers know the formats.
// Threads: immutable after opening; every method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/weights/tensor_type.h"

namespace sluice {

// Validated by the reader: `bytes` lies inside the mapping and holds exactly the elements of `shape`.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // row-major, slowest first: a projection is [out, in]
  TensorType type;
  absl::string_view bytes;  // borrowed from the WeightFile

  // The last dimension is the row: a vector of n is one row of n.
  int64_t row_elements() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;
};

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

class WeightFile {
 public:
  virtual ~WeightFile() = default;

  virtual const std::string& path() const = 0;
  virtual const TensorMap& tensors() const = 0;
  // What precedes the tensor data in each file, in file-name order.
  virtual std::vector<absl::string_view> headers() const = 0;

  std::vector<std::string> names() const;
  // NotFound names the file and the tensor.
  absl::StatusOr<TensorInfo> Find(absl::string_view name) const;
  // Dequantises rows [row_begin, row_end); out holds exactly that many rows of row_elements().
  absl::Status ReadRows(absl::string_view name, int64_t row_begin, int64_t row_end,
                        absl::Span<float> out) const;
  // Identity of the model's weights: FNV-1a 64 over every header byte, then over each tensor in name order:
  // all bytes up to 64 KiB, else 16 evenly spaced pieces of 4 KiB that include the first and the last. It
  // tells different models and different conversions apart; it does not detect a single flipped bit.
  uint64_t Digest() const;
};

absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, absl::Span<float> out);

// The byte size of a tensor, or InvalidArgument: more than 4 dimensions, a negative or overflowing one, a row
// that is not a whole number of blocks. The message starts with `where`.
absl::StatusOr<size_t> TensorBytes(absl::string_view where, TensorType type,
                                   const std::vector<int64_t>& shape);

}  // namespace sluice
