#include "common/model/model_dir.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_map.h"
#include "common/base/status.h"
#include "common/model/gguf_tokenizer.h"
#include "common/model/model_config.h"
#include "common/text/stable_hash.h"
#include "common/weights/gguf.h"
#include "common/weights/safetensors.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool IsDirectory(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string NameOf(const std::string& path) {
  std::error_code error;
  fs::path full = fs::canonical(path, error);
  if (error) full = path;
  return IsDirectory(path) ? full.filename().string() : full.stem().string();
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(FileMap file, FileMap::Open(path));
  return std::string(file.bytes());
}

// Empty when the file does not exist.
absl::StatusOr<std::string> ReadOptionalText(const std::string& path) {
  if (!Exists(path)) return std::string();
  return ReadText(path);
}

absl::StatusOr<ModelShape> DirectoryShape(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::string config, ReadText(path + "/config.json"));
  SLUICE_ASSIGN_OR_RETURN(std::string generation, ReadOptionalText(path + "/generation_config.json"));
  auto shape = ParseHfConfig(config, generation);
  if (!shape.ok())
    return absl::Status(shape.status().code(), absl::StrCat(path, "/", shape.status().message()));
  shape->name = NameOf(path);
  return shape;
}

absl::StatusOr<ModelShape> FileShape(const GgufFile& file) {
  SLUICE_ASSIGN_OR_RETURN(ModelShape shape, ShapeFromGguf(file));
  shape.name = NameOf(file.path());
  return shape;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> DirectoryWeights(const std::string& path) {
  const std::string single = path + "/model.safetensors", index = path + "/model.safetensors.index.json";
  if (Exists(single)) return SafetensorsFile::Open(single);
  if (Exists(index)) return SafetensorsFile::OpenSharded(index);
  return absl::NotFoundError(
      absl::StrCat(path, ": neither model.safetensors nor model.safetensors.index.json"));
}

// Newer checkpoints keep the template in a file of its own, which wins over the one in tokenizer_config.json.
absl::StatusOr<std::string> WithTemplate(const std::string& where, std::string config,
                                         const std::string& text) {
  if (text.empty()) return config;
  auto json = config.empty() ? nlohmann::json::object() : nlohmann::json::parse(config, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ": is not a JSON object"));
  json["chat_template"] = text;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<GgufFile>> OpenGguf(const std::string& path) {
  if (absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a safetensors file has weights only; name the directory that it is in"));
  }
  return GgufFile::Open(path);
}

}  // namespace

absl::StatusOr<ModelShape> OpenShape(const std::string& path) {
  if (IsDirectory(path)) return DirectoryShape(path);
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenGguf(path));
  return FileShape(*file);
}

absl::StatusOr<ModelFiles> OpenModel(const std::string& path) {
  if (IsDirectory(path)) {
    SLUICE_ASSIGN_OR_RETURN(ModelShape shape, DirectoryShape(path));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, DirectoryWeights(path));
    SLUICE_ASSIGN_OR_RETURN(ModelWeights weights,
                            ModelWeights::Create(std::move(file), shape, WeightLayout::kHuggingFace));
    return ModelFiles{std::move(shape), std::move(weights)};
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenGguf(path));
  SLUICE_ASSIGN_OR_RETURN(ModelShape shape, FileShape(*file));
  WeightLayout layout = shape.family == "llama" ? WeightLayout::kGgufInterleaved : WeightLayout::kGguf;
  SLUICE_ASSIGN_OR_RETURN(ModelWeights weights, ModelWeights::Create(std::move(file), shape, layout));
  return ModelFiles{std::move(shape), std::move(weights)};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path) {
  if (!IsDirectory(path)) {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenGguf(path));
    SLUICE_ASSIGN_OR_RETURN(TokenizerParts parts, TokenizerPartsFromGguf(*file));
    return Tokenizer::FromParts(std::move(parts));
  }
  const std::string config_path = path + "/tokenizer_config.json";
  SLUICE_ASSIGN_OR_RETURN(std::string tokenizer, ReadText(path + "/tokenizer.json"));
  SLUICE_ASSIGN_OR_RETURN(std::string config, ReadOptionalText(config_path));
  SLUICE_ASSIGN_OR_RETURN(std::string chat_template, ReadOptionalText(path + "/chat_template.jinja"));
  SLUICE_ASSIGN_OR_RETURN(config, WithTemplate(config_path, std::move(config), chat_template));
  return Tokenizer::FromJson(tokenizer, config);
}

std::string WeightsHash(const ModelFiles& files) {
  const ModelShape& s = files.shape;
  StableHash hash;
  hash.Add(s.family);
  for (int n : {s.n_layers, s.hidden, s.intermediate, s.n_q_heads, s.n_kv_heads, s.head_dim, s.vocab})
    hash.Add(int64_t{n});
  for (bool b : {s.qkv_bias, s.qk_norm, s.tied_embeddings}) hash.Add(int64_t{b});
  hash.Add(absl::string_view(reinterpret_cast<const char*>(&s.rms_eps), sizeof(s.rms_eps)));
  hash.Add(static_cast<int64_t>(files.weights.Digest()));
  return hash.Hex();
}

std::string RopeHash(const ModelShape& shape) {
  StableHash hash;
  hash.Add(absl::string_view(reinterpret_cast<const char*>(shape.inv_freq.data()),
                             shape.inv_freq.size() * sizeof(float)));
  hash.Add(absl::string_view(reinterpret_cast<const char*>(&shape.rope_attention_scale), sizeof(float)));
  for (int window : shape.sliding_window) hash.Add(int64_t{window});
  return hash.Hex();
}

}  // namespace sluice
