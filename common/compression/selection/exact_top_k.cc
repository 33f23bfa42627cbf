// Selection `exact_topk`: the rows of the largest exact scores, for which it reads every key: a yardstick,
// not a way to save time. Per query head, as RocketKV (arXiv 2502.14051) compares itself with: a group may
// then read as many times its budget as it has heads. `exact_topk_group` gives a group one set of rows, those
// of the largest mean attention of its heads. Differs: keys are cached after RoPE.
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

class ExactTopK final : public Selector {
 public:
  explicit ExactTopK(bool per_group) : per_group_(per_group) {}
  std::array<int32_t, 4> parameters(const SelectionGate& gate) const override {
    return {0, 0, gate.tokens, 0};
  }
  void Attend(LayerId, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const override {
    ops.TopKAttention(q, cache, per_group_, out);
  }

 private:
  const bool per_group_;
};

}  // namespace

const Selector& ExactTopKSelection() {
  static const ExactTopK selector(/*per_group=*/false);
  return selector;
}

const Selector& ExactTopKGroupSelection() {
  static const ExactTopK selector(/*per_group=*/true);
  return selector;
}

}  // namespace sluice
