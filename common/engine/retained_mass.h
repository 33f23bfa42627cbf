// Role: how much of a prompt's attention falls on the rows that compression kept: per layer, of the softmax
// weights of the last queries over all rows, the sum over kept rows. Why: it needs no task and no reference
// answer. It says what was dropped, not what that costs: accuracy does not follow it.
// Threads: that of its rank's pass; read when the pass is between two layers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/prefill_pass.h"

namespace sluice {

// [layer * n_kv_heads + head] of the whole model: row numbers, each once.
using KeptRows = std::vector<std::vector<int32_t>>;

// Watches the pass of a whole prompt without compression.
class RetainedMass final : public AttentionObserver {
 public:
  static constexpr int kQueries = 32;

  // The observed rank has the KV heads from first_head on. kept is borrowed.
  RetainedMass(const KeptRows* kept, const KvShape& model, int first_head)
      : kept_(kept), n_kv_heads_(model.n_kv_heads), first_head_(first_head), sums_(model.n_layers) {}

  int queries() const override { return kQueries; }
  absl::Status OnAttention(const LayerView& view, Ops& ops, Workspace& workspace) override;

  // Of the layers so far: the sum over this rank's KV heads of the share in [0, 1], a mean over the last
  // queries and over the query heads of each KV head.
  double sum(LayerId layer) const { return sums_[layer.value()]; }

 private:
  const KeptRows* const kept_;
  const int n_kv_heads_;
  const int first_head_;
  std::vector<double> sums_;   // [n_layers]
  std::vector<float> scores_;  // [its KV heads, rows]
};

}  // namespace sluice
