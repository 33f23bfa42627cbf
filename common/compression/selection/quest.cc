// Selection `quest` (Quest, arXiv 2406.10774): each query head reads the pages whose bounds allow the largest
// scores, whole. As its accuracy code: pages are ranked in f32, the last one is not forced in, and the first
// two layers are dense. Bounds are kept in these layers too.
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

class Quest final : public Selector {
 public:
  std::array<int32_t, 4> parameters(const SelectionGate& gate) const override {
    return {gate.page, gate.channels, gate.tokens, 0};
  }
  int dense_layers() const override { return 2; }
  void Attend(LayerId layer, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const override {
    layer.value() < dense_layers() ? ops.PagedAttention(q, cache, out) : ops.QuestAttention(q, cache, out);
  }
};

}  // namespace

const Selector& QuestSelection() {
  static const Quest selector;
  return selector;
}

}  // namespace sluice
