// Role: may this prefill process feed that decode process? Compared field by field, so that the error names
// the field and both values. The software's build is no field: the protocol range is negotiated instead, so
// that rolling upgrades work. Threads: none, plain values.
#pragma once

#include <optional>
#include <string>

namespace sluice {

struct Compatibility {
  std::string weights_hash;
  std::string tokenizer_hash;  // with the chat template
  std::string rope_hash;       // RoPE parameters
  std::string kv_dtype;        // "bf16"
  int page_rows = 0;
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  friend bool operator==(const Compatibility&, const Compatibility&) = default;
};

struct Mismatch {
  std::string field;
  std::string ours;
  std::string theirs;
};

// The first field that differs, in the order above.
std::optional<Mismatch> FirstMismatch(const Compatibility& ours, const Compatibility& theirs);

}  // namespace sluice
