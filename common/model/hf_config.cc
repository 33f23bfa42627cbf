#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/config_object.h"
#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "common/model/shape_checks.h"

namespace sluice {
namespace {

// What a family's config.json means where it is silent, and what it adds.
struct Family {
  absl::string_view model_type;
  absl::string_view name;
  absl::string_view architecture;
  bool qkv_bias;
  bool qk_norm;
  int default_head_dim;  // 0: hidden / heads
  enum { kNoWindow, kMistralWindow, kQwenWindow } window;
};

constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", false, false, 0, Family::kNoWindow},
    {"mistral", "mistral", "MistralForCausalLM", false, false, 0, Family::kMistralWindow},
    {"ministral", "mistral", "MinistralForCausalLM", false, false, 0, Family::kMistralWindow},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", true, false, 0, Family::kQwenWindow},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false, true, 128, Family::kQwenWindow},
};

// Fields that say nothing about the numbers a forward pass computes.
constexpr absl::string_view kHarmless[] = {
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "attention_dropout",
    "dtype",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_length",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "return_dict",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
};

absl::StatusOr<const Family*> FindFamily(ConfigObject& config) {
  SLUICE_ASSIGN_OR_RETURN(std::string type, config.StringOr("model_type", ""));
  for (const Family& family : kFamilies) {
    if (family.model_type != type) continue;
    SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> architectures, config.Strings("architectures"));
    for (const std::string& name : architectures)
      if (name != family.architecture)
        return config.Invalid("architectures", absl::StrCat(name, " is not supported for model_type ", type,
                                                            ", only ", family.architecture));
    return &family;
  }
  return config.Invalid("model_type", absl::StrCat("'", type,
                                                   "' is not supported (llama, mistral, ministral, "
                                                   "qwen2, qwen3 are)"));
}

absl::Status ReadYarn(ConfigObject& fields, RopeSpec* rope) {
  SLUICE_ASSIGN_OR_RETURN(rope->attention_factor, fields.OptionalNumber("attention_factor"));
  if (rope->attention_factor && *rope->attention_factor <= 0)
    return fields.Invalid("attention_factor", "is not above 0");
  SLUICE_ASSIGN_OR_RETURN(rope->mscale, fields.OptionalNumber("mscale"));
  SLUICE_ASSIGN_OR_RETURN(rope->mscale_all_dim, fields.OptionalNumber("mscale_all_dim"));
  SLUICE_ASSIGN_OR_RETURN(rope->beta_fast, fields.PositiveOr("beta_fast", 32));
  SLUICE_ASSIGN_OR_RETURN(rope->beta_slow, fields.PositiveOr("beta_slow", 1));
  if (rope->beta_fast < rope->beta_slow) return fields.Invalid("beta_fast", "is below beta_slow");
  SLUICE_ASSIGN_OR_RETURN(rope->truncate, fields.BoolOr("truncate", true));
  return absl::OkStatus();
}

// The object of `rope_scaling` or `rope_parameters`.
absl::Status ReadScaling(ConfigObject& fields, int context, RopeSpec* rope) {
  SLUICE_ASSIGN_OR_RETURN(std::string old_type, fields.StringOr("type", "default"));
  SLUICE_ASSIGN_OR_RETURN(std::string type, fields.StringOr("rope_type", old_type));
  SLUICE_ASSIGN_OR_RETURN(rope->theta, fields.PositiveOr("rope_theta", rope->theta));
  SLUICE_RETURN_IF_ERROR(fields.MustBe("partial_rotary_factor", 1));
  if (type == "default") return fields.Finish({});

  if (type == "linear") {
    rope->kind = RopeKind::kLinear;
  } else if (type == "llama3") {
    rope->kind = RopeKind::kLlama3;
    SLUICE_ASSIGN_OR_RETURN(rope->low_freq_factor, fields.Positive("low_freq_factor"));
    SLUICE_ASSIGN_OR_RETURN(rope->high_freq_factor, fields.Positive("high_freq_factor"));
    if (rope->high_freq_factor <= rope->low_freq_factor)
      return fields.Invalid("high_freq_factor", "is not above low_freq_factor");
  } else if (type == "yarn") {
    rope->kind = RopeKind::kYarn;
    SLUICE_RETURN_IF_ERROR(ReadYarn(fields, rope));
  } else {
    return fields.Invalid("rope_type",
                          absl::StrCat("'", type, "' is not supported (default, linear, llama3, yarn are)"));
  }
  if (rope->kind != RopeKind::kLinear) {
    SLUICE_ASSIGN_OR_RETURN(rope->original_context,
                            fields.PositiveOr("original_max_position_embeddings", context));
  }
  SLUICE_ASSIGN_OR_RETURN(rope->factor, fields.Positive("factor"));
  if (rope->factor < 1) return fields.Invalid("factor", absl::StrCat(rope->factor, " is below 1"));
  return fields.Finish({});
}

absl::Status ReadRope(ConfigObject& config, ModelShape* shape) {
  RopeSpec rope;
  SLUICE_ASSIGN_OR_RETURN(rope.theta, config.PositiveOr("rope_theta", rope.theta));
  SLUICE_RETURN_IF_ERROR(config.MustBe("partial_rotary_factor", 1));
  SLUICE_RETURN_IF_ERROR(config.MustBe("rope_interleaved", false));
  SLUICE_ASSIGN_OR_RETURN(std::optional<ConfigObject> scaling, config.Object("rope_scaling"));
  SLUICE_ASSIGN_OR_RETURN(std::optional<ConfigObject> parameters, config.Object("rope_parameters"));
  if (scaling && parameters)
    return config.Invalid("rope_parameters", "rope_scaling is set as well; keep one");
  if (parameters) scaling = std::move(parameters);
  if (scaling) SLUICE_RETURN_IF_ERROR(ReadScaling(*scaling, shape->context, &rope));
  if (rope.theta <= 1) return config.Invalid("rope_theta", absl::StrCat(rope.theta, " is not above 1"));
  shape->inv_freq = InverseFrequencies(rope, shape->head_dim);
  shape->rope_attention_scale = RopeAttentionScale(rope);
  return absl::OkStatus();
}

// layer_types wins where it is present. Transformers' "mistral" class ignores it and points to its
// "ministral" class, which obeys it; a checkpoint that carries the field means it, so it is obeyed for both.
absl::Status ReadWindows(ConfigObject& config, const Family& family, ModelShape* shape) {
  shape->sliding_window.assign(shape->n_layers, 0);
  if (family.window == Family::kNoWindow) return absl::OkStatus();

  // A config that is silent about the size means 4096; null means none.
  const int silent = config.Mentions("sliding_window") ? 0 : 4096;
  int window = 0, first = 0;
  if (family.window == Family::kMistralWindow) {
    SLUICE_ASSIGN_OR_RETURN(window, config.IntOr("sliding_window", silent, 1, kMaxContext));
  } else {
    SLUICE_ASSIGN_OR_RETURN(bool use, config.BoolOr("use_sliding_window", false));
    SLUICE_ASSIGN_OR_RETURN(int size, config.IntOr("sliding_window", silent, 0, kMaxContext));
    SLUICE_ASSIGN_OR_RETURN(first, config.IntOr("max_window_layers", 28, 0, INT32_MAX));
    if (use) window = size;
  }
  if (!config.Has("layer_types")) {
    for (int i = first; i < shape->n_layers; ++i) shape->sliding_window[i] = window;
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> types, config.Strings("layer_types"));
  if (types.size() != static_cast<size_t>(shape->n_layers))
    return config.Invalid("layer_types",
                          absl::StrCat(types.size(), " entries for ", shape->n_layers, " layers"));
  for (int i = 0; i < shape->n_layers; ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention")
      return config.Invalid("layer_types", absl::StrCat("'", types[i], "' is not supported"));
    if (window == 0) return config.Invalid("layer_types", "has sliding_attention but sliding_window is off");
    shape->sliding_window[i] = window;
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(ConfigObject& config, const Family& family, ModelShape* shape) {
  SLUICE_ASSIGN_OR_RETURN(shape->n_layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  SLUICE_ASSIGN_OR_RETURN(shape->hidden, config.Int("hidden_size", 1, kMaxWidth));
  SLUICE_ASSIGN_OR_RETURN(shape->intermediate, config.Int("intermediate_size", 1, kMaxWidth));
  SLUICE_ASSIGN_OR_RETURN(shape->n_q_heads, config.Int("num_attention_heads", 1, kMaxHeads));
  SLUICE_ASSIGN_OR_RETURN(shape->n_kv_heads,
                          config.IntOr("num_key_value_heads", shape->n_q_heads, 1, kMaxHeads));
  SLUICE_ASSIGN_OR_RETURN(shape->vocab, config.Int("vocab_size", 1, kMaxVocab));
  SLUICE_ASSIGN_OR_RETURN(shape->context, config.Int("max_position_embeddings", 1, kMaxContext));
  SLUICE_ASSIGN_OR_RETURN(double eps, config.Positive("rms_norm_eps"));
  if (eps >= 1) return config.Invalid("rms_norm_eps", absl::StrCat(eps, " is not below 1"));
  shape->rms_eps = static_cast<float>(eps);
  if (!config.Has("head_dim") && family.default_head_dim == 0 && shape->hidden % shape->n_q_heads != 0)
    return config.Invalid("num_attention_heads",
                          absl::StrCat(shape->n_q_heads, " does not divide hidden_size ", shape->hidden,
                                       " and head_dim is missing"));
  int head_dim = family.default_head_dim != 0 ? family.default_head_dim : shape->hidden / shape->n_q_heads;
  SLUICE_ASSIGN_OR_RETURN(shape->head_dim, config.IntOr("head_dim", head_dim, 1, kMaxHeadDim));
  if (shape->head_dim < 1 || shape->head_dim > kMaxHeadDim)
    return config.Invalid("num_attention_heads", absl::StrCat("leaves a head_dim of ", shape->head_dim));
  return CheckShape(*shape, "config.json", {"num_attention_heads", "num_key_value_heads", "head_dim"});
}

absl::Status ReadTokens(ConfigObject& config, absl::string_view generation_json, ModelShape* shape) {
  const int last = shape->vocab - 1;
  SLUICE_ASSIGN_OR_RETURN(std::vector<int> eos, config.IntOrList("eos_token_id", 0, last));
  SLUICE_ASSIGN_OR_RETURN(std::vector<int> bos, config.IntOrList("bos_token_id", 0, last));
  if (!generation_json.empty()) {
    SLUICE_ASSIGN_OR_RETURN(ConfigObject generation,
                            ConfigObject::Parse("generation_config.json", generation_json));
    if (generation.Has("eos_token_id")) {
      SLUICE_ASSIGN_OR_RETURN(eos, generation.IntOrList("eos_token_id", 0, last));
    }
    if (generation.Has("bos_token_id")) {
      SLUICE_ASSIGN_OR_RETURN(bos, generation.IntOrList("bos_token_id", 0, last));
    }
  }
  if (bos.size() > 1) return config.Invalid("bos_token_id", "is a list");
  shape->eos_ids.assign(eos.begin(), eos.end());
  if (!bos.empty()) shape->bos_id = bos[0];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelShape> ParseHfConfig(absl::string_view config_json,
                                         absl::string_view generation_config_json) {
  SLUICE_ASSIGN_OR_RETURN(ConfigObject config, ConfigObject::Parse("config.json", config_json));
  SLUICE_ASSIGN_OR_RETURN(const Family* family, FindFamily(config));
  ModelShape shape;
  shape.family = std::string(family->name);
  shape.qkv_bias = family->qkv_bias;
  shape.qk_norm = family->qk_norm;
  SLUICE_RETURN_IF_ERROR(ReadSizes(config, *family, &shape));
  SLUICE_RETURN_IF_ERROR(ReadRope(config, &shape));
  SLUICE_RETURN_IF_ERROR(ReadWindows(config, *family, &shape));
  SLUICE_RETURN_IF_ERROR(ReadTokens(config, generation_config_json, &shape));
  SLUICE_ASSIGN_OR_RETURN(shape.tied_embeddings, config.BoolOr("tie_word_embeddings", false));
  SLUICE_ASSIGN_OR_RETURN(std::string activation, config.StringOr("hidden_act", "silu"));
  if (activation != "silu")
    return config.Invalid("hidden_act", absl::StrCat("'", activation, "' is not supported, only silu"));
  SLUICE_RETURN_IF_ERROR(config.MustBe("attention_bias", false));
  SLUICE_RETURN_IF_ERROR(config.MustBe("mlp_bias", false));
  SLUICE_RETURN_IF_ERROR(config.MustBe("pretraining_tp", 1));
  SLUICE_RETURN_IF_ERROR(config.MustBe("is_encoder_decoder", false));
  SLUICE_RETURN_IF_ERROR(config.MustBe("add_cross_attention", false));
  SLUICE_RETURN_IF_ERROR(config.Finish(kHarmless));
  shape.tsp_layer = KnownTspLayer(shape);
  return shape;
}

}  // namespace sluice
