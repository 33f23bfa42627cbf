// Selection `hsa` (RocketKV, arXiv 2502.14051, second stage): pages are ranked by bounds in a few channels,
// the rows of the best ones are attended to exactly. The op does both.
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

class Hsa final : public Selector {
 public:
  std::array<int32_t, 4> parameters(const SelectionGate& gate) const override {
    return {gate.page, gate.channels, gate.tokens, 0};
  }
  void Attend(LayerId, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const override {
    ops.HsaAttention(q, cache, out);
  }
};

}  // namespace

const Selector& HsaSelection() {
  static const Hsa selector;
  return selector;
}

}  // namespace sluice
