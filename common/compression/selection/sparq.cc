// Selection `sparq` (SparQ Attention, arXiv 2312.04985): a query group reads the rows that score best in the
// few channels where its queries are largest, and the latest ones; what its approximate softmax has elsewhere
// goes to the mean of all values, or nowhere in `sparq_without_mean`. As the grouped form of its research
// code: channels and rows are a group's, rows by the sum of its heads' approximate logits, the share of the
// mean a head's own. Differs: the latest rows are always a quarter of what is read and the newest one, which
// that code has as two numbers, and the newest row counts as one of the rows read.
#include "common/compression/selection/selector.h"

namespace sluice {
namespace {

class Sparq final : public Selector {
 public:
  explicit Sparq(bool mean_value) : mean_value_(mean_value) {}
  std::array<int32_t, 4> parameters(const SelectionGate& gate) const override {
    return {gate.page, gate.channels, gate.tokens, mean_value_};
  }
  void Attend(LayerId, TensorView q, const PagedKv& cache, Ops& ops, TensorView out) const override {
    ops.SparqAttention(q, cache, mean_value_, out);
  }

 private:
  const bool mean_value_;
};

}  // namespace

const Selector& SparqSelection() {
  static const Sparq selector(/*mean_value=*/true);
  return selector;
}

const Selector& SparqWithoutMeanSelection() {
  static const Sparq selector(/*mean_value=*/false);
  return selector;
}

}  // namespace sluice
