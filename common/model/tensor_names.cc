#include "common/model/tensor_names.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

struct Names {
  Weight weight;
  bool in_layer;
  const char* hugging_face;
  const char* gguf;
};

constexpr Names kNames[] = {
    {Weight::kEmbedding, false, "model.embed_tokens.weight", "token_embd.weight"},
    {Weight::kFinalNorm, false, "model.norm.weight", "output_norm.weight"},
    {Weight::kLmHead, false, "lm_head.weight", "output.weight"},
    {Weight::kAttentionNorm, true, "input_layernorm.weight", "attn_norm.weight"},
    {Weight::kQ, true, "self_attn.q_proj.weight", "attn_q.weight"},
    {Weight::kK, true, "self_attn.k_proj.weight", "attn_k.weight"},
    {Weight::kV, true, "self_attn.v_proj.weight", "attn_v.weight"},
    {Weight::kO, true, "self_attn.o_proj.weight", "attn_output.weight"},
    {Weight::kQBias, true, "self_attn.q_proj.bias", "attn_q.bias"},
    {Weight::kKBias, true, "self_attn.k_proj.bias", "attn_k.bias"},
    {Weight::kVBias, true, "self_attn.v_proj.bias", "attn_v.bias"},
    {Weight::kQNorm, true, "self_attn.q_norm.weight", "attn_q_norm.weight"},
    {Weight::kKNorm, true, "self_attn.k_norm.weight", "attn_k_norm.weight"},
    {Weight::kMlpNorm, true, "post_attention_layernorm.weight", "ffn_norm.weight"},
    {Weight::kGate, true, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {Weight::kUp, true, "mlp.up_proj.weight", "ffn_up.weight"},
    {Weight::kDown, true, "mlp.down_proj.weight", "ffn_down.weight"},
};

const Names& NamesOf(Weight weight) {
  const Names& names = kNames[static_cast<int>(weight)];
  SLUICE_CHECK(names.weight == weight);
  return names;
}

bool Has(const ModelShape& shape, Weight weight) {
  switch (weight) {
    case Weight::kLmHead:
      return !shape.tied_embeddings;
    case Weight::kQBias:
    case Weight::kKBias:
    case Weight::kVBias:
      return shape.qkv_bias;
    case Weight::kQNorm:
    case Weight::kKNorm:
      return shape.qk_norm;
    default:
      return true;
  }
}

}  // namespace

std::string TensorName(WeightLayout layout, WeightId id) {
  const Names& names = NamesOf(id.weight);
  if (layout == WeightLayout::kHuggingFace)
    return names.in_layer ? absl::StrCat("model.layers.", id.layer, ".", names.hugging_face)
                          : names.hugging_face;
  return names.in_layer ? absl::StrCat("blk.", id.layer, ".", names.gguf) : names.gguf;
}

Split SplitOf(Weight weight) {
  switch (weight) {
    case Weight::kQ:
    case Weight::kK:
    case Weight::kV:
    case Weight::kGate:
    case Weight::kUp:
      return Split::kRows;
    case Weight::kO:
    case Weight::kDown:
    case Weight::kQBias:
    case Weight::kKBias:
    case Weight::kVBias:
      return Split::kColumns;
    default:
      return Split::kNone;
  }
}

std::vector<int64_t> WeightDims(const ModelShape& shape, Weight weight) {
  int64_t q = int64_t{shape.n_q_heads} * shape.head_dim;
  int64_t kv = int64_t{shape.n_kv_heads} * shape.head_dim;
  switch (weight) {
    case Weight::kEmbedding:
    case Weight::kLmHead:
      return {shape.vocab, shape.hidden};
    case Weight::kFinalNorm:
    case Weight::kAttentionNorm:
    case Weight::kMlpNorm:
      return {shape.hidden};
    case Weight::kQ:
      return {q, shape.hidden};
    case Weight::kK:
    case Weight::kV:
      return {kv, shape.hidden};
    case Weight::kO:
      return {shape.hidden, q};
    case Weight::kQBias:
      return {q};
    case Weight::kKBias:
    case Weight::kVBias:
      return {kv};
    case Weight::kQNorm:
    case Weight::kKNorm:
      return {shape.head_dim};
    case Weight::kGate:
    case Weight::kUp:
      return {shape.intermediate, shape.hidden};
    case Weight::kDown:
      return {shape.hidden, shape.intermediate};
  }
  return {};
}

std::vector<WeightId> WeightsOf(const ModelShape& shape) {
  std::vector<WeightId> out;
  for (const Names& names : kNames) {
    if (!Has(shape, names.weight)) continue;
    for (int layer = 0; layer < (names.in_layer ? shape.n_layers : 1); ++layer)
      out.push_back({names.weight, layer});
  }
  return out;
}

}  // namespace sluice
