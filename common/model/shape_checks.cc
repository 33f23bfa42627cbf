#include "common/model/shape_checks.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// By geometry alone: a GGUF file calls every one of them llama.
struct KnownModel {
  const char* name;
  int n_layers, hidden, intermediate, n_q_heads, n_kv_heads, vocab;
  int tsp_layer;
};

// needle-14m: measured, its model card. The others: FastKV (arXiv 2502.01068), 0-based.
constexpr KnownModel kKnownModels[] = {
    {"needle-14m", 8, 384, 1024, 6, 2, 4096, 5},
    {"Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128256, 15},
    {"Mistral-Nemo-12B", 40, 5120, 14336, 32, 8, 131072, 19},
    {"Ministral-8B", 36, 4096, 12288, 32, 8, 131072, 17},
};

}  // namespace

absl::Status CheckShape(const ModelShape& shape, absl::string_view where, const ShapeFieldNames& names) {
  if (shape.n_q_heads % shape.n_kv_heads != 0)
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", names.n_kv_heads, ": ", shape.n_kv_heads,
                                                   " does not divide ", names.n_q_heads, " ",
                                                   shape.n_q_heads));
  if (shape.head_dim % 2 != 0)
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", names.head_dim, ": ", shape.head_dim,
                                                   " is odd; rotary positions need pairs"));
  return absl::OkStatus();
}

std::optional<int> KnownTspLayer(const ModelShape& s) {
  for (const KnownModel& m : kKnownModels)
    if (s.n_layers == m.n_layers && s.hidden == m.hidden && s.intermediate == m.intermediate &&
        s.n_q_heads == m.n_q_heads && s.n_kv_heads == m.n_kv_heads && s.vocab == m.vocab)
      return m.tsp_layer;
  return std::nullopt;
}

}  // namespace sluice
