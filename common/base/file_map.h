// Role: a file mapped read-only into memory. The mapping lives as long as the object. Thread-safe (const).
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

class FileMap {
 public:
  // NotFound / InvalidArgument name the path.
  static absl::StatusOr<FileMap> Open(const std::string& path);
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  ~FileMap();

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  absl::string_view bytes() const { return {data_, size_}; }

 private:
  FileMap(const char* data, size_t size) : data_(data), size_(size) {}
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice
