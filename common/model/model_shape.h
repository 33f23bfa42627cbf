// Role: what a decoder-only model is, in numbers: everything the forward pass needs besides the weights.
// Why: the model code, the KV layout and the gates read this struct and never a configuration file.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// One block for all families: RMSNorm, attention with rotary positions, RMSNorm, SwiGLU; pre-norm residuals.
struct ModelShape {
  std::string family;  // "llama", "mistral", "qwen2" or "qwen3"
  std::string name;    // for people: directory or file name

  int n_layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int n_q_heads = 0;
  int n_kv_heads = 0;  // divides n_q_heads
  int head_dim = 0;    // even; n_q_heads * head_dim need not be hidden
  int vocab = 0;
  int context = 0;  // tokens the model was made for
  float rms_eps = 0;

  // Rotary pair i of a head is (x[i], x[i + head_dim/2]), turned by position * inv_freq[i].
  std::vector<float> inv_freq;     // [head_dim / 2], scaling applied
  float rope_attention_scale = 1;  // multiplies cos and sin (yarn)

  bool qkv_bias = false;         // on q, k and v, never on o
  bool qk_norm = false;          // RMSNorm over head_dim of each q and k head, before the rotation
  bool tied_embeddings = false;  // logits use the embedding matrix

  // [n_layers]; w > 0: the query at position i sees keys i-w+1 .. i. 0: all before it.
  std::vector<int> sliding_window;

  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  // Last layer that sees every token under token-selective propagation, 0-based; unset: not known to be safe.
  std::optional<int> tsp_layer;

  // The share of each of n ranks; n divides the KV heads and the MLP columns.
  ModelShape OfRank(int n) const {
    ModelShape share = *this;
    share.n_q_heads /= n;
    share.n_kv_heads /= n;
    share.intermediate /= n;
    return share;
  }
};

}  // namespace sluice
