// Role: opens what --model names: a Hugging Face directory or one GGUF file.
// Why: the router needs the shape and the tokenizer, the workers need the weights too; all of them must read
// the same files in the same way, and compare what they read by hashes. Threads: pure functions; what they
// return is immutable.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_shape.h"
#include "common/model/model_weights.h"
#include "common/text/tokenizer.h"

namespace sluice {

// NotFound and InvalidArgument name the file and what to change.

// config.json and generation_config.json, or GGUF metadata. `name` is the directory's or file's name.
absl::StatusOr<ModelShape> OpenShape(const std::string& path);

struct ModelFiles {
  ModelShape shape;
  ModelWeights weights;  // from model.safetensors, its shards, or the GGUF file
};
absl::StatusOr<ModelFiles> OpenModel(const std::string& path);

// tokenizer.json with tokenizer_config.json and chat_template.jinja where they exist, or GGUF metadata.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path);

// 16 hex digits over the sampled weights (WeightFile::Digest) and everything in the shape but the rotary
// part.
std::string WeightsHash(const ModelFiles& files);
// 16 hex digits over what positions mean: frequencies, their factor, and the windows.
std::string RopeHash(const ModelShape& shape);

}  // namespace sluice
