// Selection `dense`: every cached row is read.
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

class Dense final : public Selector {
 public:
  std::array<int32_t, 4> parameters(const SelectionGate&) const override { return {0, 0, 0, 0}; }
  void Attend(LayerId, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const override {
    ops.PagedAttention(q, cache, out);
  }
};

}  // namespace

const Selector& DenseSelection() {
  static const Dense selector;
  return selector;
}

}  // namespace sluice
