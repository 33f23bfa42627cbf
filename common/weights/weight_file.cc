#include "common/weights/weight_file.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/weights/dequantize.h"

namespace sluice {
namespace {

constexpr int kMaxDimensions = 4;
constexpr size_t kHashWhole = 64 << 10;
constexpr size_t kSample = 4 << 10;
constexpr size_t kSamples = 16;

class Fnv1a {
 public:
  void Add(absl::string_view bytes) {
    for (unsigned char c : bytes) hash_ = (hash_ ^ c) * 0x100000001b3u;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

int64_t TensorInfo::rows() const {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

absl::StatusOr<size_t> TensorBytes(absl::string_view where, TensorType type,
                                   const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxDimensions)
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", shape.size(), " dimensions, at most ", kMaxDimensions, " are supported"));
  int64_t elements = 1;
  for (int64_t n : shape) {
    if (n <= 0 || __builtin_mul_overflow(elements, n, &elements))
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": impossible shape [", absl::StrJoin(shape, ", "), "]"));
  }
  const BlockLayout& layout = LayoutOf(type);
  int64_t row = shape.empty() ? 1 : shape.back();
  if (row % layout.elements != 0)
    return absl::InvalidArgumentError(absl::StrCat(where, ": rows of ", row,
                                                   " elements are no whole number of ", layout.name,
                                                   " blocks of ", layout.elements));
  int64_t bytes;
  if (__builtin_mul_overflow(elements / layout.elements, static_cast<int64_t>(layout.bytes), &bytes))
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": impossible shape [", absl::StrJoin(shape, ", "), "]"));
  return static_cast<size_t>(bytes);
}

absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, absl::Span<float> out) {
  if (row_begin < 0 || row_end < row_begin || row_end > tensor.rows())
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": rows ", row_begin, " to ", row_end, " of ", tensor.rows()));
  int64_t elements = (row_end - row_begin) * tensor.row_elements();
  if (out.size() != static_cast<size_t>(elements))
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": output holds ", out.size(), " floats, need ", elements));
  const BlockLayout& layout = LayoutOf(tensor.type);
  int64_t row_blocks = tensor.row_elements() / layout.elements;
  Dequantize(tensor.type, tensor.bytes.data() + row_begin * row_blocks * layout.bytes,
             (row_end - row_begin) * row_blocks, out.data());
  return absl::OkStatus();
}

std::vector<std::string> WeightFile::names() const {
  std::vector<std::string> out;
  out.reserve(tensors().size());
  for (const auto& [name, info] : tensors()) out.push_back(name);
  return out;
}

absl::StatusOr<TensorInfo> WeightFile::Find(absl::string_view name) const {
  auto it = tensors().find(name);
  if (it == tensors().end()) return absl::NotFoundError(absl::StrCat(path(), ": no tensor named ", name));
  return it->second;
}

absl::Status WeightFile::ReadRows(absl::string_view name, int64_t row_begin, int64_t row_end,
                                  absl::Span<float> out) const {
  SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, Find(name));
  return sluice::ReadRows(tensor, row_begin, row_end, out);
}

uint64_t WeightFile::Digest() const {
  Fnv1a hash;
  for (absl::string_view header : headers()) hash.Add(header);
  for (const auto& [name, tensor] : tensors()) {
    absl::string_view bytes = tensor.bytes;
    if (bytes.size() <= kHashWhole) {
      hash.Add(bytes);
      continue;
    }
    size_t last = bytes.size() - kSample;
    size_t step = last / (kSamples - 1);
    for (size_t i = 0; i < kSamples; ++i)
      hash.Add(bytes.substr(i + 1 == kSamples ? last : i * step, kSample));
  }
  return hash.hash();
}

}  // namespace sluice
