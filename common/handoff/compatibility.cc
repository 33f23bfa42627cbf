#include "common/handoff/compatibility.h"

namespace sluice {

std::optional<Mismatch> FirstMismatch(const Compatibility& ours, const Compatibility& theirs) {
  auto text = [](const char* name, const std::string& a, const std::string& b) {
    return a == b ? std::nullopt : std::optional<Mismatch>({name, a, b});
  };
  auto number = [&](const char* name, int a, int b) {
    return text(name, std::to_string(a), std::to_string(b));
  };
  if (auto m = text("weights_hash", ours.weights_hash, theirs.weights_hash)) return m;
  if (auto m = text("tokenizer_hash", ours.tokenizer_hash, theirs.tokenizer_hash)) return m;
  if (auto m = text("rope_hash", ours.rope_hash, theirs.rope_hash)) return m;
  if (auto m = text("kv_dtype", ours.kv_dtype, theirs.kv_dtype)) return m;
  if (auto m = number("page_rows", ours.page_rows, theirs.page_rows)) return m;
  if (auto m = number("n_layers", ours.n_layers, theirs.n_layers)) return m;
  if (auto m = number("n_kv_heads", ours.n_kv_heads, theirs.n_kv_heads)) return m;
  return number("head_dim", ours.head_dim, theirs.head_dim);
}

}  // namespace sluice
