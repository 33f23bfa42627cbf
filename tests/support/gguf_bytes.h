// Role: writes GGUF bytes field by field, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

class GgufBytes {
 public:
  explicit GgufBytes(size_t alignment = 32) : alignment_(alignment) {}

  // Instead of the true numbers.
  GgufBytes& Counts(uint64_t tensors, uint64_t metadata) {
    false_counts_ = true;
    n_tensors_ = tensors;
    n_metadata_ = metadata;
    return *this;
  }
  GgufBytes& RawValue(const std::string& key, uint32_t type, const std::string& value) {
    if (!false_counts_) ++n_metadata_;
    metadata_ += String(key) + Number(type) + value;
    return *this;
  }
  GgufBytes& Text(const std::string& key, const std::string& value) {
    return RawValue(key, 8, String(value));
  }
  GgufBytes& U32(const std::string& key, uint32_t value) { return RawValue(key, 4, Number(value)); }
  GgufBytes& F32(const std::string& key, float value) { return RawValue(key, 6, Number(value)); }
  GgufBytes& Array(const std::string& key, uint32_t element, uint64_t count, const std::string& elements) {
    return RawValue(key, 9, Number(element) + Number(count) + elements);
  }
  // dims fastest first, type by ggml's number.
  GgufBytes& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
    if (!false_counts_) ++n_tensors_;
    tensors_ += String(name) + Number(static_cast<uint32_t>(dims.size()));
    for (uint64_t n : dims) tensors_ += Number(n);
    tensors_ += Number(type) + Number(offset);
    return *this;
  }
  std::string Finish(const std::string& data) const {
    std::string out =
        "GGUF" + Number(uint32_t{3}) + Number(n_tensors_) + Number(n_metadata_) + metadata_ + tensors_;
    if (!data.empty()) out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    return out + data;
  }

 private:
  template <class T>
  static std::string Number(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string String(const std::string& text) { return Number(uint64_t{text.size()}) + text; }

  size_t alignment_;
  bool false_counts_ = false;
  uint64_t n_tensors_ = 0, n_metadata_ = 0;
  std::string metadata_, tensors_;
};

}  // namespace sluice
