// Role: reads a safetensors checkpoint: one file, or shards listed by model.safetensors.index.json.
// Why: the header is JSON with byte ranges; all of it is checked here once, so that nobody downstream can
// read outside the mapping. Threads: as WeightFile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_map.h"
#include "common/weights/weight_file.h"

namespace sluice {

class SafetensorsFile final : public WeightFile {
 public:
  // Types F32, F16 and BF16. InvalidArgument names the file, the tensor or field, and what is wrong.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The shards lie beside the index. Index and shards must list the same tensors.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenSharded(const std::string& index_path);

  const std::string& path() const override { return path_; }
  const TensorMap& tensors() const override { return tensors_; }
  std::vector<absl::string_view> headers() const override { return headers_; }

 private:
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}
  // Maps one file and adds its tensors.
  absl::Status AddFile(const std::string& path);

  std::string path_;
  std::vector<FileMap> files_;
  std::vector<absl::string_view> headers_;
  TensorMap tensors_;
};

}  // namespace sluice
