#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "common/model/shape_checks.h"

namespace sluice {
namespace {

struct Architecture {
  absl::string_view name;
  bool qkv_bias;
  bool qk_norm;
};

// "llama" stands for Mistral too: the converter writes no sliding window for it.
constexpr Architecture kArchitectures[] = {
    {"llama", false, false},
    {"qwen2", true, false},
    {"qwen3", false, true},
};

// The keys "<architecture>.*", read one by one; a key that nobody read is an error.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, absl::string_view architecture)
      : file_(file), prefix_(absl::StrCat(architecture, ".")) {}

  std::string FullName(absl::string_view key) const { return absl::StrCat(prefix_, key); }
  bool Has(absl::string_view key) const { return file_.Has(absl::StrCat(prefix_, key)); }

  absl::StatusOr<int> Int(absl::string_view key, int min, int max) {
    SLUICE_ASSIGN_OR_RETURN(int64_t value, file_.GetInt(Take(key)));
    if (value < min || value > max)
      return Invalid(key, absl::StrCat(value, " is outside ", min, " to ", max));
    return static_cast<int>(value);
  }
  absl::StatusOr<int> IntOr(absl::string_view key, int fallback, int min, int max) {
    if (!Has(key)) return fallback;
    return Int(key, min, max);
  }
  // Finite and > 0.
  absl::StatusOr<double> Positive(absl::string_view key) {
    SLUICE_ASSIGN_OR_RETURN(double value, file_.GetFloat(Take(key)));
    if (!std::isfinite(value) || value <= 0) return Invalid(key, absl::StrCat(value, " is not above 0"));
    return value;
  }
  absl::StatusOr<double> PositiveOr(absl::string_view key, double fallback) {
    if (!Has(key)) return fallback;
    return Positive(key);
  }
  absl::StatusOr<std::string> StringOr(absl::string_view key, absl::string_view fallback) {
    if (!Has(key)) return std::string(fallback);
    SLUICE_ASSIGN_OR_RETURN(absl::string_view value, file_.GetString(Take(key)));
    return std::string(value);
  }
  void Ignore(absl::string_view key) { Take(key); }

  absl::Status Finish() const {
    for (const auto& [key, value] : file_.metadata())
      if (absl::StartsWith(key, prefix_) && !read_.contains(key))
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": ", key,
                         ": unknown key; it may change the model's results, so it is not ignored"));
    return absl::OkStatus();
  }

  absl::Status Invalid(absl::string_view key, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", prefix_, key, ": ", what));
  }

 private:
  const std::string& Take(absl::string_view key) { return *read_.insert(absl::StrCat(prefix_, key)).first; }

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string> read_;
};

absl::Status ReadSizes(const GgufFile& file, ArchitectureKeys& keys, ModelShape* shape) {
  SLUICE_ASSIGN_OR_RETURN(shape->n_layers, keys.Int("block_count", 1, kMaxLayers));
  SLUICE_ASSIGN_OR_RETURN(shape->hidden, keys.Int("embedding_length", 1, kMaxWidth));
  SLUICE_ASSIGN_OR_RETURN(shape->intermediate, keys.Int("feed_forward_length", 1, kMaxWidth));
  SLUICE_ASSIGN_OR_RETURN(shape->n_q_heads, keys.Int("attention.head_count", 1, kMaxHeads));
  SLUICE_ASSIGN_OR_RETURN(shape->n_kv_heads,
                          keys.IntOr("attention.head_count_kv", shape->n_q_heads, 1, kMaxHeads));
  SLUICE_ASSIGN_OR_RETURN(shape->context, keys.Int("context_length", 1, kMaxContext));
  SLUICE_ASSIGN_OR_RETURN(double eps, keys.Positive("attention.layer_norm_rms_epsilon"));
  if (eps >= 1) return keys.Invalid("attention.layer_norm_rms_epsilon", absl::StrCat(eps, " is not below 1"));
  shape->rms_eps = static_cast<float>(eps);

  bool has_length = keys.Has("attention.key_length");
  if (!has_length && shape->hidden % shape->n_q_heads != 0)
    return keys.Invalid("attention.head_count",
                        absl::StrCat(shape->n_q_heads, " does not divide embedding_length ", shape->hidden));
  SLUICE_ASSIGN_OR_RETURN(
      shape->head_dim, keys.IntOr("attention.key_length", shape->hidden / shape->n_q_heads, 1, kMaxHeadDim));
  if (shape->head_dim > kMaxHeadDim)
    return keys.Invalid("attention.head_count", absl::StrCat("leaves a head_dim of ", shape->head_dim));
  for (absl::string_view key : {"attention.value_length", "rope.dimension_count"}) {
    SLUICE_ASSIGN_OR_RETURN(int value, keys.IntOr(key, shape->head_dim, 1, kMaxHeadDim));
    if (value != shape->head_dim)
      return keys.Invalid(key,
                          absl::StrCat(value, " is not supported beside a head_dim of ", shape->head_dim));
  }

  keys.Ignore("vocab_size");  // the embedding decides
  SLUICE_ASSIGN_OR_RETURN(TensorInfo embedding, file.Find("token_embd.weight"));
  if (embedding.shape.size() != 2 || embedding.rows() > kMaxVocab ||
      embedding.row_elements() != shape->hidden)
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor token_embd.weight: is not [vocabulary, ", shape->hidden, "]"));
  shape->vocab = static_cast<int>(embedding.rows());
  std::string q = keys.FullName("attention.head_count"), kv = keys.FullName("attention.head_count_kv"),
              dim = keys.FullName("attention.key_length");
  return CheckShape(*shape, file.path(), {q, kv, dim});
}

// Llama 3's scaling comes as a tensor of divisors, one for each rotary pair.
absl::Status ApplyFrequencyFactors(const GgufFile& file, ModelShape* shape) {
  const char* name = "rope_freqs.weight";
  SLUICE_ASSIGN_OR_RETURN(TensorInfo tensor, file.Find(name));
  auto pairs = static_cast<int64_t>(shape->inv_freq.size());
  if (tensor.shape != std::vector<int64_t>{pairs})
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, ": is not [", pairs, "]"));
  std::vector<float> divisors(pairs);
  SLUICE_RETURN_IF_ERROR(ReadRows(tensor, 0, 1, absl::MakeSpan(divisors)));
  for (int64_t i = 0; i < pairs; ++i) {
    if (!std::isfinite(divisors[i]) || divisors[i] <= 0)
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor ", name, ": entry ", i, " is not a positive number"));
    shape->inv_freq[i] /= divisors[i];
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, ArchitectureKeys& keys, ModelShape* shape) {
  RopeSpec rope;
  SLUICE_ASSIGN_OR_RETURN(rope.theta, keys.PositiveOr("rope.freq_base", rope.theta));
  if (rope.theta <= 1) return keys.Invalid("rope.freq_base", absl::StrCat(rope.theta, " is not above 1"));
  SLUICE_ASSIGN_OR_RETURN(std::string type, keys.StringOr("rope.scaling.type", "none"));
  if (type != "none" && type != "linear" && type != "yarn")
    return keys.Invalid("rope.scaling.type",
                        absl::StrCat("'", type, "' is not supported (none, linear, yarn are)"));
  if (type != "none") {
    rope.kind = type == "linear" ? RopeKind::kLinear : RopeKind::kYarn;
    SLUICE_ASSIGN_OR_RETURN(rope.factor, keys.Positive("rope.scaling.factor"));
    if (rope.factor < 1) return keys.Invalid("rope.scaling.factor", absl::StrCat(rope.factor, " is below 1"));
  }
  if (type == "yarn") {
    SLUICE_ASSIGN_OR_RETURN(rope.original_context, keys.IntOr("rope.scaling.original_context_length",
                                                              shape->context, 1, kMaxContext));
    SLUICE_ASSIGN_OR_RETURN(rope.beta_fast, keys.PositiveOr("rope.scaling.yarn_beta_fast", rope.beta_fast));
    SLUICE_ASSIGN_OR_RETURN(rope.beta_slow, keys.PositiveOr("rope.scaling.yarn_beta_slow", rope.beta_slow));
    if (rope.beta_fast < rope.beta_slow)
      return keys.Invalid("rope.scaling.yarn_beta_fast", "is below beta_slow");
  }
  keys.Ignore("rope.scaling.finetuned");

  shape->inv_freq = InverseFrequencies(rope, shape->head_dim);
  shape->rope_attention_scale = RopeAttentionScale(rope);
  if (!file.Find("rope_freqs.weight").ok()) return absl::OkStatus();
  if (type != "none")
    return keys.Invalid("rope.scaling.type",
                        absl::StrCat(type, " is not supported together with rope_freqs.weight"));
  return ApplyFrequencyFactors(file, shape);
}

absl::StatusOr<std::optional<int32_t>> TokenId(const GgufFile& file, absl::string_view key, int vocab) {
  if (!file.Has(key)) return std::optional<int32_t>();
  SLUICE_ASSIGN_OR_RETURN(int64_t id, file.GetInt(key));
  if (id < 0 || id >= vocab)
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", key, ": ", id, " is outside the vocabulary of ", vocab));
  return std::optional<int32_t>(static_cast<int32_t>(id));
}

absl::Status ReadTokens(const GgufFile& file, ModelShape* shape) {
  SLUICE_ASSIGN_OR_RETURN(shape->bos_id, TokenId(file, "tokenizer.ggml.bos_token_id", shape->vocab));
  // End of text, of turn and of message: all of them end a generation.
  for (absl::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    SLUICE_ASSIGN_OR_RETURN(std::optional<int32_t> id, TokenId(file, key, shape->vocab));
    if (id && std::find(shape->eos_ids.begin(), shape->eos_ids.end(), *id) == shape->eos_ids.end())
      shape->eos_ids.push_back(*id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelShape> ShapeFromGguf(const GgufFile& file) {
  SLUICE_ASSIGN_OR_RETURN(absl::string_view name, file.GetString("general.architecture"));
  const Architecture* architecture = nullptr;
  for (const Architecture& known : kArchitectures)
    if (known.name == name) architecture = &known;
  if (architecture == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": general.architecture: '", name,
                                                   "' is not supported (llama, qwen2, qwen3 are)"));
  if (file.Has("split.count")) {
    SLUICE_ASSIGN_OR_RETURN(int64_t parts, file.GetInt("split.count"));
    if (parts > 1)
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": split.count: one of ", parts, " parts; merge them into one file"));
  }
  ModelShape shape;
  shape.family = std::string(name);
  if (file.Has("general.name")) {
    SLUICE_ASSIGN_OR_RETURN(absl::string_view title, file.GetString("general.name"));
    shape.name = std::string(title);
  }
  shape.qkv_bias = architecture->qkv_bias;
  shape.qk_norm = architecture->qk_norm;
  ArchitectureKeys keys(file, name);
  SLUICE_RETURN_IF_ERROR(ReadSizes(file, keys, &shape));
  SLUICE_RETURN_IF_ERROR(ReadRope(file, keys, &shape));
  SLUICE_RETURN_IF_ERROR(keys.Finish());
  SLUICE_RETURN_IF_ERROR(ReadTokens(file, &shape));
  shape.tied_embeddings = !file.Find("output.weight").ok();
  shape.sliding_window.assign(shape.n_layers, 0);
  shape.tsp_layer = KnownTspLayer(shape);
  return shape;
}

}  // namespace sluice
