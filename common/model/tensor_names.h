// Role: what each weight of a model is called in its file, and its shape.
// Why: the model code asks for "k of layer 3"; names and stored row order are the format's business.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_shape.h"

namespace sluice {

enum class Weight {
  kEmbedding,  // [vocab, hidden]
  kFinalNorm,  // [hidden]
  kLmHead,     // [vocab, hidden]
  // One of each per layer:
  kAttentionNorm,  // [hidden]
  kQ,              // [n_q_heads * head_dim, hidden]
  kK,              // [n_kv_heads * head_dim, hidden]
  kV,              // [n_kv_heads * head_dim, hidden]
  kO,              // [hidden, n_q_heads * head_dim]
  kQBias,          // [n_q_heads * head_dim]
  kKBias,          // [n_kv_heads * head_dim]
  kVBias,          // [n_kv_heads * head_dim]
  kQNorm,          // [head_dim]
  kKNorm,          // [head_dim]
  kMlpNorm,        // [hidden]
  kGate,           // [intermediate, hidden]
  kUp,             // [intermediate, hidden]
  kDown,           // [hidden, intermediate]
};

struct WeightId {
  Weight weight;
  int layer = 0;  // ignored by the weights outside layers
};

enum class WeightLayout {
  kHuggingFace,
  kGguf,  // qwen2, qwen3
  // Architecture llama. Within each head of q and k the file's rows 2i and 2i + 1 are rows i and
  // i + head_dim/2 of the Hugging Face order, because its rotation takes neighbours as pairs.
  kGgufInterleaved,
};

// Which part of a weight each rank of a model has.
enum class Split {
  kNone,     // all of it
  kRows,     // its heads' or MLP columns' rows
  kColumns,  // its heads' or MLP columns' columns; of a vector, its entries
};
Split SplitOf(Weight weight);

std::string TensorName(WeightLayout layout, WeightId id);

// Row-major; one entry for vectors.
std::vector<int64_t> WeightDims(const ModelShape& shape, Weight weight);

// All weights a model of this shape has. Without kLmHead where it is tied.
std::vector<WeightId> WeightsOf(const ModelShape& shape);

}  // namespace sluice
